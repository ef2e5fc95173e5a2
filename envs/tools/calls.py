"""One tool call, and whether it is one: checked against what the tool declares."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rollcage.envs.tools.declared import Tool
from rollcage.errors import did_you_mean

_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_SHOWN_CHARS = 80


class ToolCall(NamedTuple):
    """A call that can be carried out: a tool that exists, with all of its arguments and no others."""

    name: str
    arguments: Mapping[str, Any]


class Malformed(NamedTuple):
    """What was meant as a call, and why it is none: one line that a model can act on."""

    why: str


Found = ToolCall | Malformed


def check_call(name: object, arguments: object, tools: Sequence[Tool], *, as_text: bool = False) -> Found:
    """Return the call, or why it is none.

    Args:
        name, arguments: what a model wrote, whatever it is.
        tools: those that it may call.
        as_text: the format knows no types: a number or a truth value may be written as text.
    """
    if not isinstance(name, str) or not name:
        return Malformed('the call has no "name"')
    known = {str(tool["name"]): tool for tool in tools}
    if name not in known:
        shown = name.encode("ascii", "backslashreplace").decode()[:_SHOWN_CHARS]
        return Malformed(f"there is no tool {shown!r} (there are: {', '.join(known)}).{did_you_mean(shown, known)}")
    if not isinstance(arguments, Mapping):
        return Malformed(f"the arguments of {name} must be a JSON object")
    schema = known[name]["parameters"]
    properties: Mapping[str, Any] = schema.get("properties", {})
    for key in schema.get("required", ()):
        if key not in arguments:
            return Malformed(f"{name} needs the argument {key!r}")
    checked = {}
    for key, value in arguments.items():
        if key not in properties:
            takes = ", ".join(properties) or "none"
            shown = str(key).encode("ascii", "backslashreplace").decode()[:_SHOWN_CHARS]
            return Malformed(f"{name} has no argument {shown!r} (it takes: {takes})")
        if value is None and key not in schema.get("required", ()):
            continue
        kind = properties[key].get("type", "string")
        if as_text and kind != "string" and isinstance(value, str):
            value = _typed(value.strip())
        if not _fits(value, kind):
            return Malformed(f"the argument {key!r} of {name} must be of type {kind}")
        if isinstance(value, str) and (problem := _unusable(value)):
            return Malformed(f"the argument {key!r} of {name} holds {problem}")
        checked[key] = value
    return ToolCall(name, checked)


def usage(tools: Sequence[Tool]) -> str:
    """Return how to call ``tools``, for a first observation or the answer to a malformed call."""
    lines = []
    for tool in tools:
        schema = tool["parameters"]
        needed = set(schema.get("required", ()))
        names = [key if key in needed else f"[{key}]" for key in schema.get("properties", {})]
        lines.append(f"{tool['name']}({', '.join(names)}): {tool['description']}")
    return "\n".join(lines)


def example(tools: Sequence[Tool]) -> str:
    """Return one call of the first tool, as an answer shows it."""
    return write_call(str(tools[0]["name"]), **dict.fromkeys(tools[0]["parameters"].get("required", ()), "..."))


def write_call(name: str, **arguments: Any) -> str:
    """Return a call as a model writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _fits(value: object, kind: str) -> bool:
    if isinstance(value, bool) and kind != "boolean":
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, _KINDS.get(kind, (object,)))


def _typed(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _unusable(text: str) -> str:
    if "\0" in text:
        return "a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair, which is no text"
    return ""
