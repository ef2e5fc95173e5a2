r"""Where a message's final answer stands: one policy for every environment with short answers.

What a model thinks is not its answer: text up to the last ``</think>`` is left out, and so is what follows a
``<think>`` that is never closed. In the rest:

1. The last of these marks counts, whichever it is: ``\boxed{...}`` (or ``\fbox``), ``<answer>...</answer>`` and
   ``<final_answer>...</final_answer>``.
2. Where there is none of them, the last "answer is ...", "answer: ..." or ``#### ...`` counts, up to the end of its
   sentence or line.
3. Else the message holds no answer.

So several answers are never tried one by one: the last stands for all. A mark inside another one is the last of the two
(``<answer>\boxed{5}</answer>`` says 5), and a mark that is never closed is no answer, even after one that is.
"""

from __future__ import annotations

import re

_MARK = re.compile(r"\\(?:boxed|fbox)\s{0,8}\{|<answer>|<final_answer>")
_PHRASE = re.compile(r"\banswer\s{0,8}(?:\bis\b(?:\s{0,8}:)?|:|=)|####", re.IGNORECASE)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_SENTENCE_END = re.compile(r"\.[*_`]{0,3}\s")
_EMPHASIS = " \t\r\n*_`"


def outside_thinking(message: str) -> str:
    """Return the part of ``message`` that is not thinking; see the module.

    >>> outside_thinking("<think>perhaps 4</think>It is 5.")
    'It is 5.'
    """
    _, closed, rest = message.rpartition("</think>")
    return (rest if closed else message).partition("<think>")[0]


def final_answer(message: str) -> str | None:
    r"""Return the final answer of a message, stripped, or None where it holds none. Never raises; linear time.

    >>> final_answer(r"Is it \boxed{4}? No: \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    >>> final_answer("So the answer is **B**.")
    'B'
    >>> final_answer("It is 5.") is None
    True
    """
    text = outside_thinking(message)
    mark = _last(_MARK, text)
    if mark is not None:
        end = _closing_brace(text, mark.end()) if mark[0].endswith("{") else text.find("</" + mark[0][1:], mark.end())
        return text[mark.end() : end].strip() or None if end >= 0 else None
    phrase = _last(_PHRASE, text)
    if phrase is None:
        return None
    line = text[phrase.end() :].lstrip(_EMPHASIS).partition("\n")[0]
    sentence = _SENTENCE_END.split(line, maxsplit=1)[0].rstrip(_EMPHASIS).removesuffix(".")
    return sentence.rstrip(_EMPHASIS) or None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    match = None
    for match in pattern.finditer(text):  # noqa: B007  (the last one is wanted)
        pass
    return match


def _closing_brace(text: str, start: int) -> int:
    r"""The place of the brace that closes the one before ``start``, or -1; ``\{`` and ``\}`` are characters."""
    depth = 1
    for brace in _BRACE.finditer(text, start):
        if brace[0] == "{":
            depth += 1
        elif brace[0] == "}":
            depth -= 1
            if depth == 0:
                return brace.start()
    return -1
