r"""Written arithmetic, read and valued exactly: no `eval`, no symbolic algebra, no floating point, linear time.

What is read (one policy, wherever an expression is read):

- whole numbers of 1 to 18 of the digits 0 to 9, without leading zeros: ``7``, not ``07``, ``7.0``, ``7e0``, ``0x7``,
  ``1_000`` or ``1,000``;
- ``+ - * /`` with the usual precedence, from left to right, and round parentheses nested to any depth;
- one minus sign before a number or a parenthesis (``-3+5``, ``3*-5``); no plus sign, no two signs (``3---5``);
- other ways to write just these: ``× · ⋅ ∗ \times \cdot`` (times), ``÷ ∕ \div`` (division), ``− –`` (minus), and the
  full-width forms of digits, signs and parentheses;
- any white space between numbers, signs and parentheses;
- at the end, if the writer likes, one equals sign and the integer that the expression is claimed to be (``3+5 = 8``).

Everything else is malformed: two operands with no operator between them (``3 5``, ``2(3)``), ``**``, ``//``, ``%``,
``!``, ``^``, names and calls, square brackets, digits of other scripts, invisible characters.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import gcd
from typing import NamedTuple

_SYNONYMS = str.maketrans(
    {
        **dict.fromkeys("×·⋅∗＊", "*"),
        **dict.fromkeys("÷∕／", "/"),
        **dict.fromkeys("−–－", "-"),
        **dict(zip("＋（）＝０１２３４５６７８９", "+()=0123456789", strict=True)),
    }
)
_LATEX = {r"\times": "*", r"\cdot": "*", r"\div": "/"}
_LATEX_OPERATOR = re.compile(r"\\(?:times|cdot|div)(?![A-Za-z])")
_NUMBER = re.compile(r"([1-9][0-9]{0,17}(?![0-9])|0(?![0-9]))")
_CLAIM = re.compile(r"\s*(-?(?:[1-9][0-9]{0,17}|0))\s*")

_PRECEDENCE = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2, "~": 3}
_MAX_CACHED_SHAPE = 128

Step = tuple[str, int, int]
"""An operator and the places of its operands; ``~`` is the minus sign before one operand, which stands twice."""


class Expression(NamedTuple):
    """A well-formed expression.

    Attributes:
        numbers: its numbers, in order.
        steps: what to do with them: each step takes two values by their places and adds one at the end; the numbers are
            the first values, and the last value is the expression's own.
        claim: the integer after the equals sign, or None.
    """

    numbers: list[int]
    steps: tuple[Step, ...]
    claim: int | None


def parse(text: str) -> Expression | None:
    """Return the expression that ``text`` holds, or None where it is malformed. Never raises; linear time.

    >>> parse("(3 + 5) * 10 = 80")
    Expression(numbers=[3, 5, 10], steps=(('+', 0, 1), ('*', 3, 2)), claim=80)
    """
    if not text.isascii():
        text = text.translate(_SYNONYMS)
    if "\\" in text:
        text = _LATEX_OPERATOR.sub(lambda match: _LATEX[match[0]], text)
    claim = None
    if "=" in text:
        text, _, rest = text.partition("=")
        match = _CLAIM.fullmatch(rest)
        if match is None:
            return None
        claim = int(match[1])
    parts = _NUMBER.split(text)  # what stands between the numbers, and the numbers, in turn
    # Expressions of one shape, such as (1+1)*1, differ in their numbers only, and there are few short shapes.
    shape = "1".join(parts[::2])
    steps = _cached_plan(shape) if len(shape) <= _MAX_CACHED_SHAPE else _plan(shape)
    return None if steps is None else Expression([*map(int, parts[1::2])], steps, claim)


def _plan(shape: str) -> tuple[Step, ...] | None:
    """Return the steps of a shape, in which "1" stands for any number, or None where it is malformed.

    Dijkstra's shunting-yard algorithm. Digits that are no number, such as the 0 of 07, are still in the shape, and make
    it malformed: no operator stands between them and the next.
    """
    num_numbers = shape.count("1")
    num_read = 0
    steps: list[Step] = []
    places: list[int] = []  # of the values that no step has used yet
    waiting: list[str] = []  # operators and open parentheses whose right side has not been read

    def take() -> None:
        operator = waiting.pop()
        right = places.pop()
        left = right if operator == "~" else places.pop()
        places.append(num_numbers + len(steps))
        steps.append((operator, left, right))

    operand_next = True
    for token in "".join(shape.split()):
        if operand_next:
            if token == "1":
                places.append(num_read)
                num_read += 1
                operand_next = False
            elif token == "(":
                waiting.append(token)
            elif token == "-" and not (waiting and waiting[-1] == "~"):
                waiting.append("~")
            else:
                return None
        elif token == ")":
            while waiting and waiting[-1] != "(":
                take()
            if not waiting:
                return None
            waiting.pop()
        elif token in "+-*/":
            while waiting and _PRECEDENCE[waiting[-1]] >= _PRECEDENCE[token]:
                take()
            waiting.append(token)
            operand_next = True
        else:
            return None
    if operand_next or "(" in waiting:
        return None
    while waiting:
        take()
    return tuple(steps)


_cached_plan = lru_cache(maxsize=8192)(_plan)


def evaluate(expression: Expression) -> tuple[int, int] | None:
    """Return the exact value as (numerator, denominator), not reduced, or None where it divides by zero.

    The work grows with the size of the values: check an untrusted expression's numbers first.

    >>> evaluate(parse("6/4 - 1"))
    (2, 4)
    """
    values = [(number, 1) for number in expression.numbers]
    for operator, left, right in expression.steps:
        a, b = values[left]
        c, d = values[right]
        if operator == "+":
            values.append((a * d + c * b, b * d))
        elif operator == "-":
            values.append((a * d - c * b, b * d))
        elif operator == "*":
            values.append((a * c, b * d))
        elif operator == "~":
            values.append((-a, b))
        elif c == 0:
            return None
        else:
            values.append((a * d, b * c))
    return values[-1]


def reduced(numerator: int, denominator: int) -> tuple[int, int]:
    """Return the fraction in lowest terms with a denominator above zero."""
    divisor = gcd(numerator, denominator) if denominator > 0 else -gcd(numerator, denominator)
    return numerator // divisor, denominator // divisor


def format_value(numerator: int, denominator: int) -> str:
    """Return 14/4 as "7/2" and 8/1 as "8"."""
    if denominator != 1:
        numerator, denominator = reduced(numerator, denominator)
    return f"{numerator}" if denominator == 1 else f"{numerator}/{denominator}"
