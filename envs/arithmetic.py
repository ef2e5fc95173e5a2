r"""Written arithmetic, read and valued exactly: no `eval`, no symbolic algebra, no floating point, linear time.

What is read (one policy, wherever an expression is read):

- whole numbers in the digits 0 to 9, without leading zeros: ``7``, not ``07``, ``7.0``, ``7e0``, ``0x7``, ``1_000`` or
  ``1,000``;
- ``+ - * /`` with the usual precedence, from left to right, and round parentheses nested to any depth;
- one minus sign before a number or a parenthesis (``-3+5``, ``3*-5``); no plus sign, no two signs (``3---5``);
- other ways to write just these: ``× · ⋅ ∗ \times \cdot`` (times), ``÷ ∕ \div`` (division), ``− –`` (minus), the
  full-width forms of digits, signs and parentheses, and the usual Unicode spaces;
- at the end, if the writer likes, one equals sign and the integer that the expression is claimed to be (``3+5 = 8``).

Everything else is malformed: two operands with no operator between them (``3 5``, ``2(3)``), ``**``, ``//``, ``%``, ``!``,
``^``, names and calls, square brackets, digits of other scripts, invisible characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import gcd
from typing import NamedTuple

_SYNONYMS = str.maketrans(
    {
        **dict.fromkeys("×·⋅∗＊", "*"),
        **dict.fromkeys("÷∕／", "/"),
        **dict.fromkeys("−–－", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u200a\u202f\u3000", " "),
        **dict(zip("＋（）＝０１２３４５６７８９", "+()=0123456789", strict=True)),
    }
)
_LATEX = {r"\times": "*", r"\cdot": "*", r"\div": "/"}
_LATEX_OPERATOR = re.compile(r"\\(?:times|cdot|div)(?![A-Za-z])")
_READABLE = re.compile(r"[0-9+\-*/()= \t\r\n]*")
_TOKEN = re.compile(r"[0-9]+|[-+*/()=]")
_PRECEDENCE = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2, "~": 3}
_NEGATE = "~"


class Expression(NamedTuple):
    """A well-formed expression.

    Attributes:
        numbers: its numbers as they are written, in order (strings: they may be of any length).
        postfix: its numbers and operators in postfix order; ``~`` is the minus sign before an operand.
        claim: what stands after the equals sign, as it is written, or None.
    """

    numbers: list[str]
    postfix: list[str]
    claim: str | None


def parse(text: str) -> Expression | None:
    """Return the expression that ``text`` holds, or None where it is malformed. Never raises; linear time."""
    if not text.isascii():
        text = text.translate(_SYNONYMS)
    if "\\" in text:
        text = _LATEX_OPERATOR.sub(lambda match: _LATEX[match[0]], text)
    if not _READABLE.fullmatch(text):
        return None
    tokens = _TOKEN.findall(text)
    claim = None
    if "=" in tokens:
        equals = tokens.index("=")
        claim = "".join(tokens[equals + 1 :])
        if len(tokens) - equals > 3 or not _is_integer(claim):
            return None
        del tokens[equals:]
    numbers: list[str] = []
    postfix: list[str] = []
    waiting: list[str] = []  # operators and open parentheses whose right side has not been read
    operand_next = True
    for token in tokens:
        if operand_next:
            if token == "(":
                waiting.append(token)
            elif token == "-":
                if waiting and waiting[-1] == _NEGATE:
                    return None
                waiting.append(_NEGATE)
            elif token in "+*/)" or (token[0] == "0" and token != "0"):
                return None
            else:
                numbers.append(token)
                postfix.append(token)
                operand_next = False
        elif token == ")":
            while waiting and waiting[-1] != "(":
                postfix.append(waiting.pop())
            if not waiting:
                return None
            waiting.pop()
        elif token in "+-*/":
            precedence = _PRECEDENCE[token]
            while waiting and _PRECEDENCE[waiting[-1]] >= precedence:
                postfix.append(waiting.pop())
            waiting.append(token)
            operand_next = True
        else:
            return None
    if operand_next or "(" in waiting:
        return None
    postfix.extend(reversed(waiting))
    return Expression(numbers, postfix, claim)


def evaluate(postfix: Sequence[str]) -> tuple[int, int] | None:
    """Return the exact value as (numerator, denominator > 0) in lowest terms, or None where it divides by zero.

    The work grows with the size of the numbers: check an untrusted expression's numbers first.
    """
    stack: list[tuple[int, int]] = []
    for token in postfix:
        if token not in _PRECEDENCE:
            stack.append((int(token), 1))
            continue
        c, d = stack.pop()
        if token == _NEGATE:
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
    numerator, denominator = stack.pop()
    divisor = gcd(numerator, denominator) if denominator > 0 else -gcd(numerator, denominator)
    return numerator // divisor, denominator // divisor


def format_value(value: tuple[int, int]) -> str:
    """Return ``(7, 2)`` as "7/2" and ``(8, 1)`` as "8"."""
    return f"{value[0]}" if value[1] == 1 else f"{value[0]}/{value[1]}"


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isdigit() and (digits == "0" or digits[0] != "0")
