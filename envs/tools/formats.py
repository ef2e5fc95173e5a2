"""Tool calls as models write them, in whichever of the current chat formats.

1. JSON in tags (Hermes, Qwen and more): ``<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>``.
   The last tag may be missing, as where it is a stop sequence.
2. Tags in tags (Qwen's coders): ``<tool_call><function=bash><parameter=command>ls</parameter></function></tool_call>``;
   the outer tag may be missing.
3. JSON after a mark: ``[TOOL_CALLS]`` and a list (Mistral), ``<|python_tag|>`` and an object (Llama), or a message
   that is nothing but such an object or list.
4. DeepSeek's marks, older and newer (`rollcage.envs.tools.deepseek`).
5. Harmony, of gpt-oss: a message of its own for each call (`rollcage.envs.tools.harmony`).
6. A fenced code block: its language is the tool (``bash``, ``sh``, ``shell``, ``python``, ``py``), or it is ``json`` or
   ``tool_call`` and holds a call.

The object may say "parameters" or "input" for "arguments", have them as JSON in a string, or hold all of it under
"function". What stands inside thinking does not count. Where a message holds calls in tags, its code blocks are text;
where a Harmony message has no recipient, it may still hold calls in the other formats.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from rollcage.envs.answers import outside_thinking
from rollcage.envs.tools import deepseek
from rollcage.envs.tools.calls import Found, Malformed, check_call
from rollcage.envs.tools.declared import Tool
from rollcage.envs.tools.harmony import is_harmony, read_harmony
from rollcage.envs.tools.json_calls import MAX_CALLS, after_space, calls_at, calls_of, is_call, read_json

__all__ = ["MAX_CALLS", "parse_calls"]

_TAG = re.compile(rf"<tool_call>|<function=|\[TOOL_CALLS\]|<\|python_tag\|>|{deepseek.MARK}")
_FUNCTION = re.compile(r"<function=([^>\n]{1,100})>")
_PARAMETER = re.compile(r"<parameter=([^>\n]{1,100})>")
_FENCE = re.compile(r"^[ ]{0,3}(`{3,}|~{3,})[ ]{0,8}([\w+-]*)[^\n`]*$", re.MULTILINE)
_SHELLS, _PYTHONS, _JSONS = ("bash", "sh", "shell"), ("python", "py", "python3"), ("json", "tool_call", "tool_code")


def parse_calls(message: str, tools: Sequence[Tool]) -> list[Found]:
    """Return the calls of a message in their order, malformed ones included; none: []. Never raises, whatever it is.

    >>> from rollcage.envs.tools.declared import BASH
    >>> parse_calls('Look.\\n```bash\\nls\\n```', [BASH])
    [ToolCall(name='bash', arguments={'command': 'ls'})]
    """
    calls: Iterable[Found] = ()
    if is_harmony(message):
        calls, message = read_harmony(message, tools)
    if not calls:
        text = outside_thinking(message)
        calls = _tagged(text, tools) if _TAG.search(text) else _untagged(text, tools)
    found = list(islice(calls, MAX_CALLS + 1))
    if len(found) > MAX_CALLS:
        found[-1] = Malformed(f"a message may hold {MAX_CALLS} calls; the others were left out")
    return found


def _tagged(text: str, tools: Sequence[Tool]) -> Iterator[Found]:
    place = 0
    while tag := _TAG.search(text, place):
        place = tag.end()
        if tag[0] == "<tool_call>":
            start = after_space(text, place)
            if text.startswith("<function=", start):
                continue
            calls, place = calls_at(text, place, tools)
            if (closed := text.find("</tool_call>", place)) >= 0:
                following = _TAG.search(text, place, closed)
                place = following.start() if following else closed + len("</tool_call>")
            yield from calls
        elif tag[0] == "<function=":
            call, place = _function(text, tag.start(), tools)
            yield call
        elif re.fullmatch(deepseek.MARK, tag[0]):
            call, place = deepseek.read_deepseek(text, tag, tools)
            yield call
        else:
            calls, place = calls_at(text, place, tools)
            yield from calls


def _untagged(text: str, tools: Sequence[Tool]) -> Iterator[Found]:
    stripped = text.strip()
    if stripped[:1] in ("{", "[") and (value := read_json(stripped)) is not None and is_call(value):
        yield from calls_of(value, tools)
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
        elif language in _JSONS and (value := read_json(body.strip())) is not None and is_call(value):
            yield from calls_of(value, tools)


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
