r"""Is an answer to a question the right one? Compared as text, by fixed rules: no model judges.

An option is named by its letter (``B``, ``(B)``, ``b.``, ``option B``), by its exact text, or by both if they agree
(``B. Paris``). A letter that names an option is taken for the letter even if it is another option's text. Anything
else, such as "A or B", names none.

A short answer is right if it is the same text without case, articles, quotation marks, sentence punctuation and surplus
spaces. What carries meaning counts: points and colons within numbers, a minus, the letter of "vitamin A". Where the
right answer is a number, the answer must be a number of the same value (``1,000`` and ``1000.0``, ``50%`` and ``0.5``),
with or without a unit.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping

from rollcage.envs.math.notation import normalise, read_number

MAX_ANSWER = 2_000
"""Longer answers are wrong, unread."""

_WRAPPED = re.compile(r"\$?\\(?:text|textbf|mathrm|mathbf)\s?\{([^{}]*)\}\$?")
_LETTER = re.compile(r"(?:(?:option|choice|answer)\s{1,3})?[(\[]?([A-Z])[)\].:]{0,2}", re.IGNORECASE)
_LETTER_AND_TEXT = re.compile(r"[(\[]?([A-Z])(?:[)\].:]{1,2}\s?|\s[-–]\s)(.+)", re.DOTALL)
# Punctuation that says nothing. A point or colon before a digit does (1.5, 3:15), and so does the mark of 5!.
_DROPPED = re.compile(
    r"[\"'`“”‘’;?]|\.(?!\d)|(?<=[^\W\d])\.|:(?!\d)|(?<!\d):|(?<!\d)!|,(?!\d)|(?<!\d),|(?<=\d),(?=\d{3}(?!\d))"
)
_DASHES = re.compile(r"[‐‑–—−]")
_LOOSE_DASHES = re.compile(r"(?<=[^\W_])-+|-+(?![^\W_]|[.(\\])|[_\s]+")  # all but a minus: the dash before -x, -5
_ARTICLES = re.compile(r"^a\s+(?=\S)|\b(?:an|the)\s+(?=\S)")  # the a of "vitamin A" is none


def chosen_option(answer: str, options: Mapping[str, str]) -> str | None:
    """Return the letter of the option that ``answer`` names, or None where it names none, or several.

    >>> options = {"A": "Rome", "B": "Paris"}
    >>> [chosen_option(answer, options) for answer in ("B", "(b)", "paris", "B. Paris", "B. Rome", "A or B")]
    ['B', 'B', 'B', 'B', None, None]
    """
    if len(answer) > MAX_ANSWER:
        return None
    answer = _bare(answer)
    if (match := _LETTER.fullmatch(answer)) and match[1].upper() in options:
        return match[1].upper()
    match = _LETTER_AND_TEXT.fullmatch(answer)
    if match and match[1] in options and _text(match[2]) == _text(options[match[1]]):
        return match[1]
    for same in (_text, lambda text: _text(text).casefold()):
        named = [letter for letter, text in options.items() if same(text) == same(answer)]
        if named:
            return named[0] if len(named) == 1 else None
    return None


def same_short_answer(gold: str, answer: str) -> bool:
    """Return whether ``answer`` says the same as ``gold``; see the module.

    >>> same_short_answer("The Beatles", "beatles."), same_short_answer("8", "8.0"), same_short_answer("no", "no, yes")
    (True, True, False)
    """
    if len(answer) > max(MAX_ANSWER, 2 * len(gold)):
        return False
    gold, answer = _bare(gold), _bare(answer)
    if gold == answer:
        return True
    if not any(character.isalpha() for character in gold) and (number := read_number(normalise(gold))) is not None:
        other = read_number(normalise(answer))
        return other is not None and other.value == number.value
    if "\\" in gold:
        return normalise(gold) == normalise(answer)
    return _words(gold) == _words(answer)


def _bare(text: str) -> str:
    text = text.strip().strip("*_`$").strip()
    match = _WRAPPED.fullmatch(text)
    return match[1].strip() if match else text


def _text(text: str) -> str:
    return " ".join(text.split()).removesuffix(".")


def _words(text: str) -> str:
    """The words that are compared; of a text without letters and digits (brackets), its characters."""
    text = unicodedata.normalize("NFKC", text).casefold()
    if not any(character.isalnum() for character in text):
        return "".join(text.split())
    words = _LOOSE_DASHES.sub(" ", _DASHES.sub("-", _DROPPED.sub("", text))).strip()
    return " ".join(_ARTICLES.sub(" ", words).split())
