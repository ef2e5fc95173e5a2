"""Tool calls as models write them, in whichever of the current chat formats.

1. JSON in tags (Hermes, Qwen and more): ``<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>``.
   The last tag may be missing, as where it is a stop sequence.
2. Tags in tags (Qwen's coders): ``<tool_call><function=bash><parameter=command>ls</parameter></function></tool_call>``;
   the outer tag may be missing.
3. JSON after a mark: ``[TOOL_CALLS]`` and a list (Mistral), ``<|python_tag|>`` and an object (Llama), or a message
   that is nothing but such an object or list.
4. A fenced code block: its language is the tool (``bash``, ``sh``, ``shell``, ``python``, ``py``), or it is ``json`` or
   ``tool_call`` and holds a call.

The object may say "parameters" or "input" for "arguments", have them as JSON in a string, or hold all of it under
"function". What stands inside thinking does not count. Where a message holds calls in tags, its code blocks are text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollcage.envs.answers import outside_thinking
from rollcage.envs.tools.calls import Malformed, ToolCall, check_call
from rollcage.envs.tools.declared import Tool

MAX_CALLS = 8
"""What a message holds beyond so many calls is left out: one malformed call says so."""

_TAG = re.compile(r"<tool_call>|<function=|\[TOOL_CALLS\]|<\|python_tag\|>")
_FUNCTION = re.compile(r"<function=([^>\n]{1,100})>")
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,100})>")
_FENCE = re.compile(r"^[ ]{0,3}(`{3,}|~{3,})[ ]{0,8}([\w+-]*)[^\n`]*$", re.MULTILINE)
_SPACE = re.compile(r"\s*")
_SHELLS, _PYTHONS, _JSONS = ("bash", "sh", "shell"), ("python", "py", "python3"), ("json", "tool_call", "tool_code")

_DECODER = json.JSONDecoder(strict=False)  # models write line ends as they are into strings

Found = ToolCall | Malformed


def parse_calls(message: str, tools: Sequence[Tool]) -> list[Found]:
    """Return the calls of a message in their order, malformed ones included; none: []. Never raises, whatever it is.

    >>> from rollcage.envs.tools.declared import BASH
    >>> parse_calls('Look.\\n```bash\\nls\\n```', [BASH])
    [ToolCall(name='bash', arguments={'command': 'ls'})]
    """
    text = outside_thinking(message)
    found: list[Found] = []
    for call in _tagged(text, tools) if _TAG.search(text) else _untagged(text, tools):
        if len(found) == MAX_CALLS:
            found.append(Malformed(f"a message may hold {MAX_CALLS} calls; the others were left out"))
            break
        found.append(call)
    return found


def _tagged(text: str, tools: Sequence[Tool]) -> Iterator[Found]:
    place = 0
    while tag := _TAG.search(text, place):
        place = tag.end()
        if tag[0] == "<tool_call>":
            start = _after_space(text, place)
            if text.startswith("<function=", start):
                continue
            calls, place = _json_calls(text, place, tools)
            if (closed := text.find("</tool_call>", place)) >= 0:
                following = _TAG.search(text, place, closed)
                place = following.start() if following else closed + len("</tool_call>")
            yield from calls
        elif tag[0] == "<function=":
            call, place = _function(text, tag.start(), tools)
            yield call
        else:
            calls, place = _json_calls(text, place, tools)
            yield from calls


def _untagged(text: str, tools: Sequence[Tool]) -> Iterator[Found]:
    stripped = text.strip()
    if stripped[:1] in ("{", "[") and (value := _json(stripped)) is not None and _is_call(value):
        yield from _calls_of(value, tools)
        return
    names = {str(tool["name"]) for tool in tools}
    place = 0
    while fence := _FENCE.search(text, place):
        closing = re.compile(rf"^[ ]{{0,3}}{re.escape(fence[1])}[`~]*[ \t]*$", re.MULTILINE).search(text, fence.end())
        body = text[fence.end() : closing.start() if closing else len(text)].removeprefix("\n")
        place = closing.end() if closing else len(text)
        language = fence[2].lower()
        tool = "bash" if language in _SHELLS else "python" if language in _PYTHONS else ""
        if tool in names:
            if closing is None:
                yield Malformed("the code block is not closed: end it with ```")
            else:
                yield check_call(tool, {"command" if tool == "bash" else "code": body.removesuffix("\n")}, tools)
        elif language in _JSONS and (value := _json(body.strip())) is not None and _is_call(value):
            yield from _calls_of(value, tools)


def _json_calls(text: str, place: int, tools: Sequence[Tool]) -> tuple[list[Found], int]:
    """Return the calls of the JSON at ``place``, and where it ends (or ``place``, where it is none)."""
    start = _after_space(text, place)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except ValueError as error:
        return [Malformed(f"the call is not valid JSON ({_reason(error)})")], place
    except RecursionError:
        return [Malformed("the call is nested too deeply")], place
    return list(_calls_of(value, tools)), end


def _reason(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "a number is too long"


def _json(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def _is_call(value: object) -> bool:
    """Whether plain JSON is meant as a call at all: any text may hold JSON."""
    if isinstance(value, list):
        return bool(value) and all(_is_call(part) for part in value[: MAX_CALLS + 1])
    return isinstance(value, Mapping) and ("name" in value or isinstance(value.get("function"), Mapping))


def _calls_of(value: object, tools: Sequence[Tool]) -> Iterator[Found]:
    for part in value if isinstance(value, list) else [value]:
        if not isinstance(part, Mapping):
            yield Malformed('a call must be a JSON object with "name" and "arguments"')
            continue
        call: Mapping[str, Any] = part["function"] if isinstance(part.get("function"), Mapping) else part
        arguments: Any = next((call[key] for key in ("arguments", "parameters", "input") if key in call), {})
        if isinstance(arguments, str):
            arguments = _json(arguments)
        yield check_call(call.get("name"), {} if arguments is None and "arguments" not in call else arguments, tools)


def _function(text: str, start: int, tools: Sequence[Tool]) -> tuple[Found, int]:
    head = _FUNCTION.match(text, start)
    if head is None:
        return Malformed("write <function=NAME>"), start + len("<function=")
    end = text.find("</function>", head.end())
    if end < 0:
        return Malformed("the call is not closed: end it with </function>"), len(text)
    arguments, place = {}, head.end()
    while parameter := _PARAMETER.search(text, place, end):
        close = text.find("</parameter>", parameter.end(), end)
        if close < 0:
            return Malformed(f"{parameter[0]} is not closed: end it with </parameter>"), end
        value = text[parameter.end() : close]
        arguments[parameter[1].strip()] = value.removeprefix("\n").removesuffix("\n")
        place = close
    return check_call(head[1].strip(), arguments, tools, as_text=True), end + len("</function>")


def _after_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return match.end() if match else place
