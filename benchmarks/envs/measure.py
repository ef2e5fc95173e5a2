"""Rates measured side by side: everyone takes turns, many times, so that what else the machine does hits all alike."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Contender:
    """Someone who is measured.

    Attributes:
        name: what the table calls it.
        work: does the work once.
        count: how many things (answers, episodes, tasks, ...) one call of ``work`` does.
        close: gives back what ``work`` needs.
    """

    name: str
    work: Callable[[], object]
    count: int
    close: Callable[[], object] = bool


def interleave(contenders: Sequence[Contender], repetitions: int, seconds: float) -> dict[str, list[float]]:
    """Return each contender's rates per second, one for each repetition; closes the contenders.

    In every repetition each contender works for about ``seconds``, in a new random order. A first call, which is not
    counted, warms up and says how often the work fits.
    """
    try:
        return _interleave(contenders, repetitions, seconds)
    finally:
        for contender in contenders:
            contender.close()


def _interleave(contenders: Sequence[Contender], repetitions: int, seconds: float) -> dict[str, list[float]]:
    calls = {}
    for contender in contenders:
        start = time.perf_counter()
        contender.work()
        calls[contender.name] = max(1, round(seconds / (time.perf_counter() - start)))
    rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    order = list(contenders)
    shuffle = random.Random(0).shuffle
    for _ in range(repetitions):
        shuffle(order)
        for contender in order:
            start = time.perf_counter()
            for _ in range(calls[contender.name]):
                contender.work()
            elapsed = time.perf_counter() - start
            rates[contender.name].append(calls[contender.name] * contender.count / elapsed)
    return rates


def summarize(rates: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Return a row for each contender; ``ratio`` is the median of the first one's rate over its own, turn by turn."""
    first = next(iter(rates.values()))
    return [
        {
            "name": name,
            "median_per_s": statistics.median(own),
            "min_per_s": min(own),
            "max_per_s": max(own),
            "ratio": statistics.median(a / b for a, b in zip(first, own, strict=True)),
        }
        for name, own in rates.items()
    ]
