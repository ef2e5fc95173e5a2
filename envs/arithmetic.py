r"""Written arithmetic, read and valued exactly: no `eval`, no symbolic algebra, no floating point, linear time.

What is read (one policy, wherever an expression is read):

- whole numbers in the digits 0 to 9, without leading zeros: ``7``, not ``07``, ``7.0``, ``7e0``, ``0x7``, ``1_000`` or
  ``1,000``;
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
_NUMBER = re.compile(r"([1-9][0-9]*|0(?![0-9]))")
_CLAIM = re.compile(r"\s*(-?(?:[1-9][0-9]*|0))\s*")

# In a shape and in postfix order, "1" stands for any number and "~" for the minus sign before an operand.
_PRECEDENCE = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2, "~": 3}
_MAX_CACHED_SHAPE = 128


class Expression(NamedTuple):
    """A well-formed expression.

    Attributes:
        numbers: its numbers as they are written, in order (strings: they may be of any length).
        postfix: its operators in postfix order, with "1" for each number and "~" for the minus sign before an operand.
        claim: the integer after the equals sign, as it is written, or None.
    """

    numbers: list[str]
    postfix: str
    claim: str | None


def parse(text: str) -> Expression | None:
    """Return the expression that ``text`` holds, or None where it is malformed. Never raises; linear time.

    >>> parse("(3 + 5) * 10 = 80")
    Expression(numbers=['3', '5', '10'], postfix='11+1*', claim='80')
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
        claim = match[1]
    parts = _NUMBER.split(text)  # what stands between the numbers, and the numbers, in turn
    shape = "".join("1".join(parts[::2]).split())
    # Expressions of one shape, such as (1+1)*1, differ in their numbers only, and there are few short shapes.
    postfix = _cached_postfix(shape) if len(shape) <= _MAX_CACHED_SHAPE else _postfix(shape)
    return None if postfix is None else Expression(parts[1::2], postfix, claim)


def _postfix(shape: str) -> str | None:
    """Return a shape in postfix order, or None where it is malformed (Dijkstra's shunting-yard algorithm)."""
    postfix: list[str] = []
    waiting: list[str] = []  # operators and open parentheses whose right side has not been read
    operand_next = True
    for token in shape:
        if operand_next:
            if token == "1":
                postfix.append(token)
                operand_next = False
            elif token == "(":
                waiting.append(token)
            elif token == "-" and not (waiting and waiting[-1] == "~"):
                waiting.append("~")
            else:
                return None
        elif token == ")":
            while waiting and waiting[-1] != "(":
                postfix.append(waiting.pop())
            if not waiting:
                return None
            waiting.pop()
        elif token in "+-*/":
            while waiting and _PRECEDENCE[waiting[-1]] >= _PRECEDENCE[token]:
                postfix.append(waiting.pop())
            waiting.append(token)
            operand_next = True
        else:
            return None
    if operand_next or "(" in waiting:
        return None
    return "".join(postfix) + "".join(reversed(waiting))


_cached_postfix = lru_cache(maxsize=8192)(_postfix)


def evaluate(expression: Expression) -> tuple[int, int] | None:
    """Return the exact value as (numerator, denominator > 0) in lowest terms, or None where it divides by zero.

    The work grows with the size of the numbers: check an untrusted expression's numbers first.

    >>> evaluate(parse("7/2 - 1"))
    (5, 2)
    """
    numbers = map(int, expression.numbers)
    stack: list[tuple[int, int]] = []
    for token in expression.postfix:
        if token == "1":
            stack.append((next(numbers), 1))
            continue
        c, d = stack.pop()
        if token == "~":
            stack.append((-c, d))
            continue
        a, b = stack.pop()
        if token == "+":
            stack.append((a * d + c * b, b * d))
        elif token == "-":
            stack.append((a * d - c * b, b * d))
        elif token == "*":
            stack.append((a * c, b * d))
        elif c == 0:
            return None
        else:
            stack.append((a * d, b * c))
    return reduced(*stack.pop())


def reduced(numerator: int, denominator: int) -> tuple[int, int]:
    """Return the fraction in lowest terms with a denominator above zero."""
    divisor = gcd(numerator, denominator) if denominator > 0 else -gcd(numerator, denominator)
    return numerator // divisor, denominator // divisor


def format_value(value: tuple[int, int]) -> str:
    """Return ``(7, 2)`` as "7/2" and ``(8, 1)`` as "8"."""
    return f"{value[0]}" if value[1] == 1 else f"{value[0]}/{value[1]}"
