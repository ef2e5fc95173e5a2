"""Calls that are JSON: an object with a name and arguments, or a list of such, whatever stands around it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollcage.envs.tools.calls import Found, Malformed, check_call
from rollcage.envs.tools.declared import Tool

MAX_CALLS = 8
"""What a message holds beyond so many calls is left out: one malformed call says so."""

_SPACE = re.compile(r"\s*")
_DECODER = json.JSONDecoder(strict=False)  # models write line ends as they are into strings


def read_json(text: str) -> Any:
    """Return the value of a text that is JSON and nothing else; None where it is not."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


def json_at(text: str, place: int) -> tuple[Any, int]:
    """Return the value of the JSON at ``place``, after white space, and where it ends; `Malformed` where it is none."""
    try:
        value, end = _DECODER.raw_decode(text, after_space(text, place))
    except json.JSONDecodeError as error:
        return Malformed(f"the call is not valid JSON ({error.msg})"), place
    except ValueError:
        return Malformed("the call is not valid JSON (a number is too long)"), place
    except RecursionError:
        return Malformed("the call is nested too deeply"), place
    return value, end


def calls_at(text: str, place: int, tools: Sequence[Tool]) -> tuple[list[Found], int]:
    """Return the calls of the JSON at ``place``, and where it ends (or ``place``, where it is none)."""
    value, end = json_at(text, place)
    return [value] if isinstance(value, Malformed) else list(calls_of(value, tools)), end


def calls_of(value: object, tools: Sequence[Tool]) -> Iterator[Found]:
    """Yield the calls of a JSON value that is meant as one or as several."""
    for part in value if isinstance(value, list) else [value]:
        if not isinstance(part, Mapping):
            yield Malformed('a call must be a JSON object with "name" and "arguments"')
            continue
        call: Mapping[str, Any] = part["function"] if isinstance(part.get("function"), Mapping) else part
        arguments: Any = next((call[key] for key in ("arguments", "parameters", "input") if key in call), {})
        if isinstance(arguments, str):
            arguments = read_json(arguments)
        yield check_call(call.get("name"), {} if arguments is None and "arguments" not in call else arguments, tools)


def is_call(value: object) -> bool:
    """Whether plain JSON is meant as a call at all: any text may hold JSON."""
    if isinstance(value, list):
        return bool(value) and all(is_call(part) for part in value[: MAX_CALLS + 1])
    return isinstance(value, Mapping) and ("name" in value or isinstance(value.get("function"), Mapping))


def after_space(text: str, place: int) -> int:
    """Return the place of the first character from ``place`` on that is no white space."""
    match = _SPACE.match(text, place)
    return match.end() if match else place
