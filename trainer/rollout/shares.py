"""The meter for starved tasks: what became of the samples, by duration, length and difficulty.

Redundancy makes a batch close on the fastest, so what is slow is trained on less often than it is sampled; filters
leave out what is easy or hopeless. Here it shows: in each bucket, what became of its samples. `rollcage.monitor` makes
shares of it, and the report a table.
"""

from __future__ import annotations

import math
from collections import Counter

from rollcage.recorder import Recorder

DIMENSIONS = ("duration_s", "length_tokens", "difficulty")

_LARGEST_POWER = 20


class SampleShares:
    """Counts samples that have come to their end, in few buckets, however many samples there are.

    Buckets are named by their upper bound: powers of two of seconds (from 1/8) and of sampled tokens (from 1), and
    fifths of difficulty, which is the share of the task's scored rollouts that did not succeed ("unknown" where none
    was scored).
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """(dimension, bucket, outcome) -> samples."""
        self._reported: Counter[tuple[str, str, str]] = Counter()

    def count(self, outcome: str, seconds: float, tokens: int, difficulty: float | None) -> None:
        """Count one sample.

        Args:
            outcome: "trained", "filtered", "stale", "failed" or "late" (cancelled because others were faster).
            seconds: its duration, until its end or its cancellation.
            tokens: tokens that the policy had sampled for it.
            difficulty: of its task, 0 to 1; None where unknown.
        """
        counts = self.counts
        counts["duration_s", _power_of_two(seconds, -3), outcome] += 1
        counts["length_tokens", _power_of_two(tokens, 0), outcome] += 1
        counts["difficulty", _fifth(difficulty), outcome] += 1

    def report(self, recorder: Recorder) -> None:
        """Add what was counted since the last call to the counters ``samples_by_<dimension>``."""
        for key, count in self.counts.items():
            if count > self._reported[key]:
                dimension, bucket, outcome = key
                recorder.counter(f"samples_by_{dimension}", count - self._reported[key], upper=bucket, outcome=outcome)
        self._reported = Counter(self.counts)


def _power_of_two(value: float, smallest: int) -> str:
    """Return the smallest power of two that is at least ``value``, within bounds, as text."""
    if value > 2.0**_LARGEST_POWER:
        return "inf"
    mantissa, exponent = math.frexp(max(value, 2.0**smallest))
    return _NAMES[exponent - (mantissa == 0.5)]


_NAMES = {power: f"{2.0**power:g}" if power < 0 else str(2**power) for power in range(-3, _LARGEST_POWER + 1)}


def _fifth(difficulty: float | None) -> str:
    if difficulty is None:
        return "unknown"
    return f"{max(1, math.ceil(5 * difficulty - 1e-9)) / 5:g}"
