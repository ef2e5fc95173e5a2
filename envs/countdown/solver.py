"""Solves Countdown problems exactly, with fractions, and writes random expressions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np

from rollcage.envs.countdown.arithmetic import reduced

_Value = tuple[int, int]  # numerator and denominator (> 0) in lowest terms
_Found = dict[_Value, str]  # value -> an expression that is worth it


def solve(numbers: Sequence[int], target: int) -> str | None:
    """Return an expression that uses every number once and is worth ``target``, or None where there is none.

    Complete search over all expressions, with exact fractions: the smaller part of each split of the numbers is
    listed, and the larger part is searched for what would then be missing.

    >>> solve([3, 5, 10], 80)
    '10*(3+5)'
    """
    found = _search(tuple(sorted(numbers)), (target, 1), {})
    return None if found is None else _bare(found)


def random_expression(numbers: Sequence[int], rng: np.random.Generator) -> str:
    """Return a random expression that uses every number once; it may be worth anything, or divide by zero."""
    parts = [str(number) for number in numbers]
    while len(parts) > 1:
        first = parts.pop(int(rng.integers(len(parts))))
        second = parts.pop(int(rng.integers(len(parts))))
        parts.append(f"({first}{'+-*/'[int(rng.integers(4))]}{second})")
    return _bare(parts[0])


def _search(numbers: tuple[int, ...], target: _Value, listed: dict[tuple[int, ...], _Found]) -> str | None:
    if len(numbers) <= 3:
        return _values(numbers, listed).get(target)
    for size in range(1, len(numbers) // 2 + 1):
        for part, rest in _splits(numbers, size):
            for value, text in _values(part, listed).items():
                if target[0] == value[0] == 0:
                    return f"({text}*({'+'.join(map(str, rest))}))"
                for missing, before, after in _missing(target, value):
                    if (found := _search(rest, missing, listed)) is not None:
                        return f"({text}{before}{found})" if before else f"({found}{after}{text})"
    return None


def _missing(target: _Value, value: _Value) -> list[tuple[_Value, str, str]]:
    """Return each (x, operator, "") with ``value operator x == target``, and (x, "", operator) where x stands first."""
    (t, u), (v, w) = target, value
    found = [
        (reduced(t * w - v * u, u * w), "", "+"),
        (reduced(t * w + v * u, u * w), "", "-"),
        (reduced(v * u - t * w, u * w), "-", ""),
    ]
    if v:
        found += [(reduced(t * w, u * v), "", "*"), (reduced(t * v, u * w), "", "/")]
        if t:
            found.append((reduced(v * u, w * t), "/", ""))
    return found


def _values(numbers: tuple[int, ...], listed: dict[tuple[int, ...], _Found]) -> _Found:
    """Return every value that the numbers can make, with an expression for each."""
    if numbers in listed:
        return listed[numbers]
    found: _Found = {(numbers[0], 1): str(numbers[0])} if len(numbers) == 1 else {}
    for size in range(1, len(numbers) // 2 + 1):
        for part, rest in _splits(numbers, size):
            for (a, b), left in _values(part, listed).items():
                for (c, d), right in _values(rest, listed).items():
                    found.setdefault(reduced(a * d + c * b, b * d), f"({left}+{right})")
                    found.setdefault(reduced(a * d - c * b, b * d), f"({left}-{right})")
                    found.setdefault(reduced(c * b - a * d, b * d), f"({right}-{left})")
                    found.setdefault(reduced(a * c, b * d), f"({left}*{right})")
                    if c:
                        found.setdefault(reduced(a * d, b * c), f"({left}/{right})")
                    if a:
                        found.setdefault(reduced(b * c, a * d), f"({right}/{left})")
    listed[numbers] = found
    return found


def _splits(numbers: tuple[int, ...], size: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield each way to take ``size`` of the sorted numbers, and what is left; equal numbers count once."""
    seen = set()
    for chosen in combinations(range(len(numbers)), size):
        part = tuple(numbers[i] for i in chosen)
        if part not in seen:
            seen.add(part)
            yield part, tuple(number for i, number in enumerate(numbers) if i not in chosen)


def _bare(expression: str) -> str:
    return expression[1:-1] if expression[0] == "(" else expression
