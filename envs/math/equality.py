r"""Is an answer the right one? Decided on the text where that is sound, else by math-verify in a bounded child process.

The rules, in this order, after `rollcage.envs.math.notation.normalise`; the first that applies decides:

1. The same text is right. ``x = 5`` and ``5`` are the same answer; of ``a = b = 5`` the last part counts, unless
   a part before it is a different number.
2. Where the right answer is a number, so must be the answer (see `read_number`), with the same exact value: arithmetic
   left undone (``48/2+48``, ``\sqrt{49}``) earns nothing. A decimal may also be the right value correctly rounded to
   six or more significant digits where no decimal is exact, or lie within the data set's own tolerance. A percent sign
   may be left out. Units (see `is_unit`) and currency signs are not compared. A number in base b (``52_8``) may omit
   its base.
3. Lists (``1,-2``, ``\{1,-2\}``, ``1 \pm \sqrt{2}``) are compared without order, tuples and intervals with order and
   brackets; a list with more or fewer items than the right one is wrong.
4. Words are compared without case.
5. Everything else is compared by math-verify, which knows that ``\sqrt{8}`` is ``2\sqrt{2}`` and ``x+1`` is ``1+x``.
   Wrong without a comparison: an expression that stands in the problem as it is (the question repeated, unless that is
   the right answer), integrals, sums, limits and the like that the right answer does not have, and more than
   `MAX_SYMBOLIC` characters.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal

from rollcage.envs.math import symbolic
from rollcage.envs.math.notation import WrittenNumber, normalise, read_number
from rollcage.envs.math.units import is_unit

Verdict = Literal["right", "wrong", "undecided"]

MAX_ANSWER = 2_000
"""Longer answers are wrong, unread."""
MAX_SYMBOLIC = 500
MAX_ITEMS = 64

_OPEN, _CLOSE = "([{", ")]}"
_ESCAPED_BRACE = re.compile(r"\\[{}]")
_NAME = re.compile(r"[A-Za-z\\' ]{1,40}(?:_\{[^{}]{1,20}\})?(?:\([A-Za-z, ]{1,20}\))?")
_MEMBER = re.compile(r"^[A-Za-z]\\in ?(?=[\[(\\])")
_EQUALS = re.compile(r"(?<![<>!:=\\])=(?!=)")
_BASED = re.compile(r"(-?[0-9A-Fa-f]{1,100})_\{([0-9]{1,3})\}")
_WORDS = re.compile(r"[A-Za-z]{3,40}(?:[ .'-]{1,2}[A-Za-z]{1,40}){0,20}")
_UNIT = re.compile(r"(?<=[\d})])\\text\{[^{}]{1,40}\}(?:\^\{?[1-3]\}?)?$")
_WORD = re.compile("[a-z]{2,20}")
_RELATION = re.compile(r"[<>]|\\[lg]e(?![A-Za-z])")
_TOLERANCE = re.compile(r"(?:\d{1,100}(?:\.\d{0,100})?|\.\d{1,100})(?:[eE][+-]?\d{1,3})?|\d{1,100}/\d{1,100}", re.ASCII)
_OPTION = re.compile(r"\(([A-Za-z])\)")
_UNDONE = re.compile(r"\\(?:i*int|oint|sum|prod|lim|max|min|gcd|lcm|det|mod|sup|inf|frac\{d\})(?![A-Za-z])|\\frac\{d")


class _Undecided(Exception):
    """A comparison did not end within its time."""


def judge(gold: str, answer: str, *, problem: str = "", tolerance: float | str = 0, timeout_s: float = 2.0) -> Verdict:
    r"""Return whether ``answer`` is right; see the module for the rules. Never raises because of what the texts hold.

    Args:
        gold: the right answer, LaTeX or plain.
        answer: what the model answered, LaTeX or plain.
        problem: the problem's text, for rule 5.
        tolerance: largest absolute difference between numbers that still counts as right.
        timeout_s: time for one symbolic comparison; see `rollcage.envs.math.symbolic`.

    Returns:
        "right", "wrong", or "undecided" where the comparison took too long: to be scored as wrong.

    Raises:
        MissingExtra: rule 5 is needed, and math-verify is not installed.
        ValueError: the tolerance is none; see `read_tolerance`.

    >>> judge("1/2", "0.5"), judge("5", "5, 6"), judge("72", "48/2+48")
    ('right', 'wrong', 'wrong')
    """
    if len(answer) > MAX_ANSWER:
        return "wrong"
    gold, answer = normalise(gold), normalise(answer)
    if not answer:
        return "wrong"
    comparison = _Comparison(problem, read_tolerance(tolerance), timeout_s)
    try:
        return "right" if comparison.same(gold, answer) else "wrong"
    except _Undecided:
        return "undecided"


def read_tolerance(written: float | str) -> Fraction:
    """Return the largest difference that a data set allows, exactly: ``0.1``, ``1e-1`` or ``1/10``.

    Raises:
        ValueError: it is no number from 0, or has more than 100 digits or an exponent of more than three, which no real
            tolerance has and which would take long to write out.
    """
    text = str(written).strip()
    if not _TOLERANCE.fullmatch(text):
        raise ValueError(f"no tolerance: {text[:40]!r}")
    try:
        return Fraction(text)
    except ZeroDivisionError:
        raise ValueError(f"no tolerance: {text[:40]!r}") from None


class _Comparison:
    """One judgement: what does not change while the parts of two answers are compared."""

    def __init__(self, problem: str, tolerance: Fraction, timeout_s: float) -> None:
        self._problem, self._tolerance, self._timeout_s = problem, tolerance, timeout_s
        self._deadline = time.monotonic() + 2 * symbolic.WALL_FACTOR * timeout_s
        self._plain_problem: str | None = None
        self._said = frozenset(_WORD.findall(problem.lower()))

    def same(self, gold: str, answer: str) -> bool:
        if gold == answer:
            return True
        gold, answer = _without_names(gold, answer)
        if gold == answer:
            return True
        if (number := read_number(gold, self._said)) is not None:
            other = read_number(answer, self._said)
            return other is not None and self._same_number(number, other, answer)
        if based := _BASED.fullmatch(gold):
            other_based = _BASED.fullmatch(answer)
            return other_based.groups() == based.groups() if other_based else based[1] == answer
        golds, answers = _items(gold), _items(answer)
        if len(golds) > 1:
            return len(golds) == len(answers) and _match(golds, answers, self.same)
        inner, other_inner = _bracketed(gold), _bracketed(answer)
        if inner is not None:
            if other_inner is None and len(answers) > 1 and gold[0] == "(" and gold[-1] == ")":
                other_inner = answers
            elif other_inner is not None and (gold[0], gold[-1]) != (answer[0], answer[-1]):
                return False
            if other_inner is not None:
                return len(inner) == len(other_inner) and all(map(self.same, inner, other_inner))
        elif other_inner is not None and _RELATION.search(gold):
            return self._same_symbolically(gold, answer, swapped=True)
        elif len(answers) > 1 or other_inner is not None:
            return False
        if option := _OPTION.fullmatch(gold):
            return answer == option[1]
        if _WORDS.fullmatch(gold):
            return gold.casefold() == answer.casefold()
        return self._same_symbolically(gold, answer)

    def _same_number(self, gold: WrittenNumber, answer: WrittenNumber, written: str) -> bool:
        scale = 100 if gold.percent != answer.percent else 1  # 50% is right for 50 as well as for 1/2
        for value in {answer.value, answer.value * scale if answer.percent else answer.value / scale}:
            difference = abs(value - gold.value)
            if difference <= self._tolerance or (
                answer.digits >= 6 and _is_rounded(gold.value, difference, answer.places)
            ):
                return answer.finished or not self._stands_in_problem(written)
        return False

    def _same_symbolically(self, gold: str, answer: str, *, swapped: bool = False) -> bool:
        """``swapped`` where math-verify knows the equality in the other order only: x < 2 for an interval."""
        gold, answer = self._without_unit(gold), self._without_unit(answer)
        if (words := _UNIT.search(answer)) and words[0] not in gold:
            return False  # "thousand" or the like, which math-verify would pass over
        if len(answer) > MAX_SYMBOLIC or "answer" in answer.lower() or self._stands_in_problem(answer):
            return False
        if not set(_UNDONE.findall(answer)) <= set(_UNDONE.findall(gold)):
            return False
        if time.monotonic() > self._deadline:
            raise _Undecided
        pair = (answer, gold) if swapped else (gold, answer)
        verdict = symbolic.compare(*pair, self._timeout_s)
        if verdict == "timeout":
            raise _Undecided
        return verdict == "equal"

    def _without_unit(self, text: str) -> str:
        unit = _UNIT.search(text)
        return text[: unit.start()] if unit and is_unit(unit[0], self._said) else text

    def _stands_in_problem(self, answer: str) -> bool:
        if self._plain_problem is None:
            self._plain_problem = normalise(self._problem).replace(" ", "")
        return len(answer) > 2 and answer.replace(" ", "") in self._plain_problem


def _is_rounded(value: Fraction, difference: Fraction, places: int) -> bool:
    """Whether ``value`` has no exact decimal and ``difference`` is no more than rounding to ``places`` leaves."""
    rest = value.denominator
    for factor in (2, 5):
        while rest % factor == 0:
            rest //= factor
    return rest != 1 and 2 * difference * 10**places <= 1


def _without_names(gold: str, answer: str) -> tuple[str, str]:
    """Both sides without ``x =``, where that leaves what they say comparable."""
    gold, answer = _MEMBER.sub("", gold), _MEMBER.sub("", answer)
    gold_name, gold_value = _named(gold)
    parts = _EQUALS.split(answer)
    if len(parts) == 1 or (len(_items(answer)) > 1 and read_number(parts[-1]) is None):
        return (gold, answer) if gold_name is None or len(_items(gold)) > 1 else (gold_value, answer)
    if gold_name is None:
        return (gold, answer) if _EQUALS.search(gold) else (gold, _last_part(parts))
    if _NAME.fullmatch(parts[0]) and _base_name(parts[0]) == _base_name(gold_name):
        return gold_value, _last_part(parts[1:])
    return gold, answer


def _named(text: str) -> tuple[str | None, str]:
    parts = _EQUALS.split(text)
    return (parts[0], parts[1]) if len(parts) == 2 and _NAME.fullmatch(parts[0]) else (None, text)


def _base_name(name: str) -> str:
    return re.split(r"[_(]", name, maxsplit=1)[0].strip()


def _last_part(parts: Sequence[str]) -> str:
    last = read_number(parts[-1])
    for part in parts[:-1]:
        number = read_number(part)
        if number is not None and (last is None or number.value != last.value):
            return "="  # "3 = 5" says nothing
    return parts[-1]


def _items(text: str) -> list[str]:
    r"""The items of a list, ``\pm`` written out; one item where it is no list."""
    if text.startswith(r"\{") and text.endswith(r"\}") and _closes(text[1:-2] + "}") == len(text) - 3:
        text = text[2:-2]
    items = []
    for item in _split(text):
        if item.count(r"\pm") == 1:
            before, after = (part.strip() for part in item.split(r"\pm"))
            items += [f"{before}+{after}" if before else after, f"{before}-{after}"]
        else:
            items.append(item.strip())
    return items


def _bracketed(text: str) -> list[str] | None:
    """The items of a tuple or interval, or None where the text is none."""
    if len(text) < 2 or text[0] not in "([" or text[-1] not in ")]" or _closes(text) != len(text) - 1:
        return None
    items = _split(text[1:-1])
    return [item.strip() for item in items] if len(items) > 1 else None


def _split(text: str) -> list[str]:
    """``text`` at its commas outside brackets; whole where the brackets do not pair up."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        if character in _OPEN:
            depth += 1
        elif character in _CLOSE:
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:place])
            start = place + 1
        if depth < 0:
            return [text]
    return [*parts, text[start:]] if depth == 0 and len(parts) < MAX_ITEMS else [text]


def _closes(text: str) -> int:
    """Where the bracket that ``text`` starts with is closed, by whichever bracket (an interval mixes them), or -1."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in _OPEN) - (character in _CLOSE)
        if depth == 0:
            return place
    return -1


def _match(golds: Sequence[str], answers: Sequence[str], same: Callable[[str, str], bool]) -> bool:
    """Whether each gold item has an answer of its own; equality is transitive, so the first that fits will do."""
    left = list(answers)
    for gold in golds:
        for place, answer in enumerate(left):
            if same(gold, answer):
                del left[place]
                break
        else:
            return False
    return True
