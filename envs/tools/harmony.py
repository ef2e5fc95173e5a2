"""Calls in Harmony, the format of gpt-oss: each is a message of its own, whose recipient is the tool.

    <|channel|>analysis<|message|>Where am I?<|end|>
    <|start|>assistant<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{"command": "pwd"}<|call|>

The recipient may stand before the channel, and the last mark may be missing, where it is a stop sequence. A call of
``python`` may hold the program as it is. The channel "analysis" is thinking.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rollcage.envs.tools.calls import Found, Malformed, check_call
from rollcage.envs.tools.declared import Tool
from rollcage.envs.tools.json_calls import MAX_CALLS, after_space, json_at

_FIRST = re.compile(
    r"\s{0,9}(?:<\|start\|>)?(?:assistant\b)?\s{0,9}(?:to=[^\s<]{1,100}\s{0,9})?<\|(?:channel|message)\|>"
)
_MESSAGE, _START = "<|message|>", "<|start|>"
_END = re.compile(r"<\|(?:start|end|call|return)\|>")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]{1,100})")
_NO_TOOLS = ("assistant", "user", "all")


def is_harmony(text: str) -> bool:
    """Whether what a model wrote begins as a message of this format does."""
    return _FIRST.match(text) is not None


def read_harmony(text: str, tools: Sequence[Tool]) -> tuple[list[Found], str]:
    """Return the calls in their order, `MAX_CALLS` and one more at most, and what is said outside of them and of
    thinking."""
    calls: list[Found] = []
    said: list[str] = []
    place = 0
    while len(calls) <= MAX_CALLS:
        begin = text.find(_MESSAGE, place)
        header = text[place : begin if begin >= 0 else len(text)].rpartition(_START)[2]
        recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
        if begin < 0:
            if recipient is not None and recipient[1] not in _NO_TOOLS:
                calls.append(Malformed(f"the call has no arguments: write {_MESSAGE} before them"))
            break
        place = begin + len(_MESSAGE)
        if recipient is None:
            end = _next_end(text, place)
            if channel is None or channel[1] != "analysis":
                said.append(text[place:end])
        elif recipient[1] in _NO_TOOLS:  # what a tool answers, made up
            end = _next_end(text, place)
        else:
            call, end = _call(text, place, recipient[1].removeprefix("functions."), tools)
            calls.append(call)
            end = _next_end(text, end)
        place = end
    return calls, "\n".join(said)


def _call(text: str, place: int, name: str, tools: Sequence[Tool]) -> tuple[Found, int]:
    if name == "python" and not text.startswith("{", after_space(text, place)):
        end = _next_end(text, place)
        return check_call(name, {"code": text[place:end]}, tools), end
    arguments, end = json_at(text, place)  # not up to the next mark, which may stand in an argument
    return arguments if isinstance(arguments, Malformed) else check_call(name, arguments, tools), end


def _next_end(text: str, place: int) -> int:
    end = _END.search(text, place)
    return end.start() if end else len(text)
