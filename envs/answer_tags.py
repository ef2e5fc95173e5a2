"""Where a message's answer stands: ``<answer>...</answer>``, after the thinking."""

from __future__ import annotations

OPEN, CLOSE = "<answer>", "</answer>"


def find_answer(message: str) -> str | None:
    """Return the content of the message's last complete answer block, stripped of white space, or None.

    Thinking is not answering: what stands before the last ``</think>`` does not count (the opening tag may be part of
    the prompt), nor does what follows a ``<think>`` that is never closed. Tags are written in lower case. Linear time.

    >>> find_answer("<think><answer>1</answer></think>First <answer>2</answer>, no: <answer> 3 </answer> Done.")
    '3'
    """
    end = len(message)
    start = message.rfind("</think>") + 1
    think = message.find("<think>", start)
    if think >= 0:
        end = think
    close = message.rfind(CLOSE, start, end)
    begin = message.rfind(OPEN, start, close) if close >= 0 else -1
    if begin < 0:
        return None
    begin += len(OPEN)
    return message[begin : message.find(CLOSE, begin)].strip()
