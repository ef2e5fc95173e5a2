r"""Written mathematics in one form, and written numbers read exactly: text in, text or fractions out, no evaluation.

`normalise` makes the many ways to write the same thing alike (``\dfrac12``, ``\left(``, ``$``, thin spaces, Unicode
signs); it never changes what is said. `read_number` reads what is a number as it stands: an integer, a decimal, a
fraction, a mixed number, a percentage, a power of two whole numbers, scientific notation, each with a currency sign, a
multiplier ("million") or a unit. Sums, products, roots and functions are not numbers but work left undone.
"""

from __future__ import annotations

import re
from collections.abc import Set
from fractions import Fraction
from math import gcd
from typing import NamedTuple

from rollcage.envs.math.units import is_unit

MAX_DIGITS = 400
"""Longer numbers and powers are not read: their text decides."""

_UNICODE = {
    **dict.fromkeys("−–—－", "-"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u200a\u202f\u3000\t\r\n", " "),
    **dict(zip("０１２３４５６７８９．，（）＝＋／％", "0123456789.,()=+/%", strict=True)),
    "×": r"\times ",
    "·": r"\cdot ",
    "⋅": r"\cdot ",
    "÷": "/",
    "π": r"\pi ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "∪": r"\cup ",
    "∈": r"\in ",
    "±": r"\pm ",
    "°": "",
    "²": "^{2}",
    "³": "^{3}",
    "½": r"\frac{1}{2}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
}
_TRANSLATION = str.maketrans(_UNICODE)

# In order. No pattern may need more than linear time: repetitions are bounded or start at a fixed mark.
_REWRITES = [
    (re.compile(pattern, re.ASCII), replacement)
    for pattern, replacement in (
        (r",\s?\\!\s?", ","),
        (r"(?<!\\)\\[()\[\]]|\$|\\\$|(?<!\\)\\[!,;:> ]|~|\\q?quad(?![A-Za-z])", " "),
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits)(?![A-Za-z])\.?", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(?:mathrm|mathbf|mathit|mathsf|textbf|textit|textrm|textnormal|mbox|operatorname\*?)\s?\{", r"\\text{"),
        (r"\^\s?(?:\{\s?\\circ\s?\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])", ""),
        (r"\\leq?slant(?![A-Za-z])|\\leq(?![A-Za-z])|<=", r"\\le "),
        (r"\\geq?slant(?![A-Za-z])|\\geq(?![A-Za-z])|>=", r"\\ge "),
        (r"\\lbrace(?![A-Za-z])", r"\\{"),
        (r"\\rbrace(?![A-Za-z])", r"\\}"),
        (r"\\(?:lvert|rvert|vert)(?![A-Za-z])", "|"),
        (r"\{\s?,\s?\}", ","),
        (r"(?:,\s?|\s)?\\text\s?\{\s{0,4}(?:and|or)\s{0,4}\}\s?", ", "),
        (r"(?:,\s|\s|(?<=[\d}\])]))(?:and|or)\s|\s?;\s?", ", "),
        (r"(?<!\\)\{(\d{1,3})((?:,\d{3}){1,9})\}", lambda match: f"{{{match[1]}{match[2].replace(',', '')}}}"),
        (r"^\s{0,8}\\approx(?![A-Za-z])", ""),
        (r"\\frac\s?(\d)\s?(\d)(?!\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s?(\d)\s?(?=\{)", r"\\frac{\1}"),
        (r"(\\frac\s?\{[^{}]{1,80}\})\s?(\d)(?!\d)", r"\1{\2}"),
        (r"\\sqrt\s?(\d)(?!\d)", r"\\sqrt{\1}"),
        (r"([_^])\s?([A-Za-z\d])(?!\d)", r"\1{\2}"),
        (r"(?<=\d)\.(?=/)", ""),
    )
]
# Spaces that say nothing. One between digits does ("1 1/2", "100, 200"), and one between words or before a unit.
_LOOSE_SPACE = re.compile(
    r"(?<![A-Za-z\d,]) | (?![A-Za-z\d])|(?<=,) (?!\d)|(?<=\D,) |(?<=[A-Za-z]) (?=\d)|(?<=\d) (?=[A-Za-z](?![A-Za-z]))"
)
_PLAIN = re.compile(r"-?[0-9A-Za-z]+(?:\.[0-9]+)?")
_EMPHASIS = re.compile(r"\s*(\*{1,3})([^*]+)\1\s*")
_WHOLE_TEXT = re.compile(r"\\text\{([^{}]*)\}")


def normalise(text: str) -> str:
    r"""Return ``text`` in one form: without dollar signs, thin spaces, sizes, degree signs, emphasis and a final stop.

    >>> normalise(r"$\left( \dfrac12,\, 3x \right).$")
    '(\\frac{1}{2},3x)'
    """
    if _PLAIN.fullmatch(text):
        return text
    if emphasised := _EMPHASIS.fullmatch(text):
        text = emphasised[2]
    text = " ".join(text.translate(_TRANSLATION).split())
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = " ".join(text.split()).rstrip(".,;: ")
    if whole := _WHOLE_TEXT.fullmatch(text):
        text = whole[1].strip()
    return _LOOSE_SPACE.sub("", text)


class WrittenNumber(NamedTuple):
    """A number as it is written.

    Attributes:
        value: its exact value; that of a percentage is a hundredth of what stands before the sign.
        percent: it is a percentage.
        digits: significant digits of a decimal, else 0.
        places: digits after the point of a decimal, else 0.
        finished: False for a power and for a fraction that can be reduced, which may be the question repeated.
    """

    value: Fraction
    percent: bool = False
    digits: int = 0
    places: int = 0
    finished: bool = True


_INT = r"\d{1,400}"
_NUMBER = re.compile(
    rf"""(?P<sign>[+-]?)\s?[€£¥₹]?\s?(?:
        (?P<grouped>[1-9]\d{{0,2}}(?:,\d{{3}}){{1,100}})(?P<grouped_places>\.\d{{1,400}})?
      | (?P<spaced>[1-9]\d{{0,2}}(?:\ \d{{3}}){{1,100}})
      | (?:(?P<whole>{_INT})\ ?(?=\\)|(?P<whole_plain>{_INT})\ (?=\d))?
        (?:\\frac\{{(?P<latex_sign>-?)(?P<over>{_INT})\}}\{{(?P<under_sign>-?)(?P<under>{_INT})\}}|(?P<over_plain>{_INT})/(?P<under_plain>{_INT}))
      | (?P<base>\d{{1,9}})\^\{{?(?P<power>-?\d{{1,4}})\}}?
      | (?P<decimal>{_INT}(?:\.\d{{0,400}})?|\.{_INT})
        (?:[eE](?P<exponent>[+-]?\d{{1,4}})|(?:\\times|\\cdot|\*)10\^\{{?(?P<ten>[+-]?\d{{1,4}})\}}?)?
    )""",
    re.VERBOSE | re.ASCII,
)
_PERCENT = re.compile(r"\s?(?:\\?%|\\text\{\s?(?:percent|%|\\%)\s?\}|percent|per cent)")
_MULTIPLIER = re.compile(r"\s?(?:\\text\{\s?)?(hundred|thousand|million|billion|trillion)(?![A-Za-z])(?:\s?\})?")
_POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}


def read_number(text: str, said: Set[str] = frozenset()) -> WrittenNumber | None:
    r"""Return the number that ``text`` (normalised) is as it stands, or None where it is anything else.

    ``said`` are words of the problem, which its unit may hold; see `rollcage.envs.math.units`.

    >>> read_number("1,234.50 dollars").value
    Fraction(2469, 2)
    >>> read_number(r"3\frac{1}{2}").value
    Fraction(7, 2)
    >>> read_number("1+1") is None
    True
    """
    match = _NUMBER.match(text)
    if match is None:
        return None
    rest = text[match.end() :]
    percent = _PERCENT.match(rest)
    if percent:
        rest = rest[percent.end() :]
    multiplier = None if percent else _MULTIPLIER.match(rest)
    if multiplier:
        rest = rest[multiplier.end() :]
    if rest and not is_unit(rest, said):
        return None
    number = _valued(match)
    if number and multiplier:  # its digits are no longer those of a decimal that could be a rounded one
        return WrittenNumber(number.value * 10 ** _POWERS[multiplier[1]], finished=number.finished)
    return number._replace(value=number.value / 100, percent=True) if number and percent else number


def _valued(match: re.Match[str]) -> WrittenNumber | None:
    sign = -1 if match["sign"] == "-" else 1
    if match["grouped"] or match["spaced"]:
        digits = (match["grouped"] or match["spaced"]).replace(",", "").replace(" ", "")
        places = (match["grouped_places"] or "")[1:]
        value = sign * Fraction(f"{digits}.{places or 0}")
        return WrittenNumber(value, digits=len(digits + places), places=len(places))
    over = match["over"] or match["over_plain"]
    if over:
        under = int(match["under"] or match["under_plain"])
        if under == 0:
            return None
        part = Fraction(int(over), under) * (-1 if (match["latex_sign"] or "") != (match["under_sign"] or "") else 1)
        whole = int(match["whole"] or match["whole_plain"] or 0)
        return WrittenNumber(sign * (whole + part), finished=gcd(int(over), under) == 1 and under != 1)
    if match["base"]:
        base, power = int(match["base"]), int(match["power"])
        if len(match["base"]) * abs(power) > MAX_DIGITS or (base == 0 and power <= 0):
            return None
        return WrittenNumber(sign * Fraction(base) ** power, finished=False)
    exponent = int(match["exponent"] or match["ten"] or 0)
    if abs(exponent) > MAX_DIGITS:
        return None
    whole_part, _, places = match["decimal"].partition(".")
    value = sign * Fraction(f"{whole_part or 0}.{places or 0}") * Fraction(10) ** exponent
    digits = (whole_part + places).lstrip("0")
    return WrittenNumber(value, digits=len(digits), places=max(0, len(places) - exponent) if places else 0)
