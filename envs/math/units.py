r"""Is what follows a number its unit? Only a phrase that is known to be one: what says another number never is.

A unit is a phrase of nouns, with "of", "per" and the like between them: units of measure, counted things (a plural,
such as ``eggs``), and before a noun words of the problem (``red marbles``, where the problem speaks of red ones).
Number words (``thousand``, ``dozen``, ``halves``), operations (``squared``, ``factorial``) and hedges are none of them.
"""

from __future__ import annotations

import re
from collections.abc import Set

MAX_WORDS = 12

_MEASURE = re.compile(
    """
    (?:kilo|centi|milli|deci|micro|nano|mega|giga)?
    (?:met(?:er|re)|gram|lit(?:er|re)|watt|joule|newton|volt|second|byte|pascal|hertz|ohm)s?
    | amp|ampere|inch|foot|feet|yard|mile|acre|hectare|gallon|quart|pint|cup|ounce|pound|stone|ton|tonne|calorie
    | dollar|euro|cent|penny|pence|pound|rupee|yuan|yen|unit|degree|radian|celsius|fahrenheit|kelvin|percentage
    | minute|hour|day|week|month|year|person|people|child|children|man|men|woman|women|mice|fish|sheep|geese|teeth
    | [cdkmnu]m|k?g|mg|[cdm]?l|ft|yd|mi|in|lbs?|oz|hrs?|yrs?|min|sec|ms|[ap]m|mph|kph|rpm|cc|rs|usd|eur|gbp|[gkm]b
    | [kmg]?hz|[km]?w|[kmg]?ev|k?pa|mol|erg|rad|deg|au|k?pc|mpc|ly
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SYMBOL = re.compile("[msghlLNJWVACFTΩ]")
"""Units of one letter; not K, M and B, which also say thousand, million and billion."""
_JOINED = re.compile(
    r"(?:[cdkmnu]m|kg|mg|[cdm]l|ft|yd|mi|in|lbs?|oz|hrs?|min|sec|ms|[ap]m|mph|rpm|cc|[kmg]?hz|[gkm]b|kw)\b", re.I
)
_COUNTED = re.compile("[a-z]{2,20}[a-rtv-z]s|[a-z]{2,20}ies")  # not less, plus, this
_NO_COUNT = re.compile(
    """
    (?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve
      |(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)t(?:y|ie)
      |hundred|thousand|[a-z]*illion|dozen|score|lakh|crore|myriad|googol
      |hal(?:f|ve)|third|quarter|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf)th
      |[a-z]*(?:teen|tie|hundred|thousand|illion)th)(?:s|es)?
    | twice|thrice|double|triple|times|factorials?
    | squared|cubed|roots?|negated|negatives?|minus|plus|powers?|inverses?|reciprocals?|opposites?
    | equals?|divided|multiplied|over|point|below|above|mod|sqrt|pi
    | or|and|not|if|but|to|is|was|has|does|any|more|less|than|maybe|perhaps|possibly|sometimes|always|otherwise
    """,
    re.VERBOSE,
)
_BEFORE = re.compile("square|cubic|sq|cu|distinct|different|possible")
_AFTER = re.compile("old|tall|long|wide|high|deep|thick|each|left|total|all|remaining|away|apart|altogether")
_BETWEEN = re.compile("of|per|an?|the|in|for|every|/")
_PHRASE = re.compile("(?:c*b*[na])+")

_POWER = re.compile(r"(?<=[A-Za-z}])\^\{?-?[1-3]\}?")
_TEXT = re.compile(r"\\text\{([^{}]{1,40})\}")
_TOKEN = re.compile(r"[A-Za-zΩ]+|/")


def is_unit(text: str, said: Set[str] = frozenset()) -> bool:
    r"""Return whether ``text`` (normalised), which follows a number, is a unit; ``said`` are words of the problem.

    >>> is_unit(" dollars per hour"), is_unit(r"\text{ cm}^{2}"), is_unit(" thousand"), is_unit(" red marbles")
    (True, True, False, False)
    >>> is_unit(" red marbles", {"red", "marbles"})
    True
    """
    if text[:1].isalpha() and not _JOINED.match(text):
        return False  # 6xyz is a product
    if text[:1] == "/" and text[1:2] != "\\":
        return False  # so is 1/s, of a variable s
    plain = re.sub(r"\\mu(?=\\text)|\\cdot|\\circ", " ", _POWER.sub("", text))
    plain = re.sub(r"\b([ap])\.m\b", r"\1m", _TEXT.sub(r" \1 ", plain))
    words = _TOKEN.findall(plain)
    if len(words) > MAX_WORDS or _TOKEN.sub("", plain).strip(" .-"):
        return False
    return _PHRASE.fullmatch("".join(_kind(word, said) for word in words)) is not None


def _kind(word: str, said: Set[str]) -> str:
    """Which part of a phrase a word may be: noun, before one, after one, between, or "x" for none."""
    if len(word) == 1 and word not in "a/":
        return "n" if _SYMBOL.fullmatch(word) else "x"
    if _MEASURE.fullmatch(word):
        return "n"
    word = word.lower()
    if _BETWEEN.fullmatch(word):
        return "c"
    if _BEFORE.fullmatch(word):
        return "b"
    if _AFTER.fullmatch(word):
        return "a"
    if _NO_COUNT.fullmatch(word):
        return "x"
    if _COUNTED.fullmatch(word):
        return "n"
    return "b" if word in said else "x"
