"""Dynamic filtering: which complete groups are worth training on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

GroupFilter = Callable[[Sequence[float], float, float], bool]
"""(returns of the group's members, low, high) -> whether it is kept."""


def keep_all(returns: Sequence[float], low: float, high: float) -> bool:
    """Keep every group."""
    return True


def keep_by_mean(returns: Sequence[float], low: float, high: float) -> bool:
    """Keep a group whose mean return lies strictly between ``low`` and ``high``: neither hopeless nor solved.

    >>> keep_by_mean([0, 0, 1], 0, 1), keep_by_mean([1, 1, 1], 0, 1)
    (True, False)
    """
    return low < math.fsum(returns) / len(returns) < high


def keep_by_std(returns: Sequence[float], low: float, high: float) -> bool:
    """Keep a group whose returns have a standard deviation (unbiased) above ``low``; ``high`` is not used.

    >>> keep_by_std([0, 0, 1], 0, 1), keep_by_std([0.3, 0.3, 0.3], 0, 1)
    (True, False)
    """
    if max(returns) == min(returns):  # exactly: a rounded mean would give equal returns a deviation
        return low < 0
    mean = math.fsum(returns) / len(returns)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in returns) / (len(returns) - 1)) > low


FILTERS: dict[str, GroupFilter] = {"none": keep_all, "mean": keep_by_mean, "std": keep_by_std}
