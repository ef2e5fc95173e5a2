"""Calls in DeepSeek's formats, the older one in two spellings and the newer one.

    <｜tool▁call▁begin｜>function<｜tool▁sep｜>bash\\n```json\\n{"command": "pwd"}\\n```<｜tool▁call▁end｜>  (V3, R1)
    <｜tool▁call▁begin｜>bash<｜tool▁sep｜>{"command": "pwd"}<｜tool▁call▁end｜>                              (V3.1)
    <｜DSML｜invoke name="bash"><｜DSML｜parameter name="command" string="true">pwd</｜DSML｜parameter></｜DSML｜invoke>
                                                                                                  (V3.2 and later)

The marks around all calls of a message are not needed, nor is the last mark in the older format.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rollcage.envs.tools.calls import Found, Malformed, check_call
from rollcage.envs.tools.declared import Tool
from rollcage.envs.tools.json_calls import json_at

MARK = r"<｜tool▁call▁begin｜>|<｜{1,2}DSML｜{1,2}invoke\b"
"""What a call begins with, as a regular expression."""

_BEGIN, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>"
_FENCE = re.compile(r"\s*(?:```(?:json)?(?=\s))?")
_NAMED = re.compile(r'\s+name="([^"\n]{1,100})"\s*>')
_INVOKED = re.compile(r"</｜{1,2}DSML｜{1,2}invoke>")
_PARAMETER = re.compile(r'<｜{1,2}DSML｜{1,2}parameter\s+name="([^"\n]{1,100})"(?:\s+string="(true|false)")?\s*>')
_GIVEN = re.compile(r"</｜{1,2}DSML｜{1,2}parameter>")


def read_deepseek(text: str, mark: re.Match[str], tools: Sequence[Tool]) -> tuple[Found, int]:
    """Return the call that begins at a `MARK`, and where it ends."""
    return _older(text, mark.end(), tools) if mark[0] == _BEGIN else _newer(text, mark.end(), tools)


def _older(text: str, place: int, tools: Sequence[Tool]) -> tuple[Found, int]:
    following = text.find(_BEGIN, place)
    stop = following if following >= 0 else len(text)
    separator = text.find(_SEPARATOR, place, stop)
    if separator < 0:
        return Malformed(f"the call must have its name, {_SEPARATOR}, and its arguments"), stop
    name, start = text[place:separator].strip(), separator + len(_SEPARATOR)
    if name == "function" and (line_end := text.find("\n", start, stop)) >= 0:
        name, start = text[start:line_end].strip(), line_end
    fence = _FENCE.match(text, start)
    arguments, end = json_at(text, fence.end() if fence else start)
    if isinstance(arguments, Malformed):
        return arguments, stop
    return check_call(name, arguments, tools), end


def _newer(text: str, place: int, tools: Sequence[Tool]) -> tuple[Found, int]:
    named, invoked = _NAMED.match(text, place), _INVOKED.search(text, place)
    if named is None:
        return Malformed('the call has no name: write invoke name="NAME"'), place
    if invoked is None:
        return Malformed("the call is not closed: end it with </｜DSML｜invoke>"), len(text)
    arguments: dict[str, Any] = {}
    place = named.end()
    while parameter := _PARAMETER.search(text, place, invoked.start()):
        given = _GIVEN.search(text, parameter.end(), invoked.start())
        if given is None:
            return Malformed(f"the parameter {parameter[1]!r} is not closed"), invoked.end()
        value: Any = text[parameter.end() : given.start()]
        if parameter[2] == "false" and isinstance(value := json_at(value, 0)[0], Malformed):
            return Malformed(f'the parameter {parameter[1]!r} says string="false" and is no JSON'), invoked.end()
        arguments[parameter[1]] = value
        place = given.end()
    return check_call(named[1], arguments, tools, as_text=True), invoked.end()
