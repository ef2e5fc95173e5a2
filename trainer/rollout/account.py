"""The conservation account: every sample that was started ends in exactly one column, or is still in flight."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Account:
    """Counts of samples (single episodes), over the whole life of a run, resumes included.

    Attributes:
        started: episodes that began.
        trained: consumed by an update.
        filtered: scored, but their group was dropped (too few survivors, or refused by the filter).
        stale: evicted because they were too old for the next update.
        failed: gave no score, by "kind/reason".
        cancelled: ended by us: others were faster, a deadline closed the batch, the run stopped, or was killed and
            resumed.
    """

    started: int = 0
    trained: int = 0
    filtered: int = 0
    stale: int = 0
    cancelled: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def open(self) -> int:
        """Samples that have started and stand in no other column."""
        settled = self.trained + self.filtered + self.stale + self.cancelled + self.failed.total()
        return self.started - settled

    def check(self, in_flight: int) -> None:
        """Raise AssertionError unless ``in_flight``, counted where the samples are, closes the account."""
        if self.open != in_flight:
            raise AssertionError(f"samples got lost: the account has {self.open} in flight, found {in_flight} ({self})")

    def to_json(self) -> dict[str, Any]:
        """Return the columns as plain data."""
        return {
            "started": self.started,
            "trained": self.trained,
            "filtered": self.filtered,
            "stale": self.stale,
            "cancelled": self.cancelled,
            "failed": dict(self.failed),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Account:
        """Inverse of `to_json`."""
        return cls(**{**data, "failed": Counter(data["failed"])})
