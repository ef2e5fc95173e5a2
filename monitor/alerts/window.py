"""What rules look at: the last updates of a run, its first ones to compare with, and how long nothing has come."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

Row = Mapping[str, float]
"""Statistics of one update, by name, as the run store has them; and what `NAMES_ADDED` says."""

NAMES_ADDED = ("failed/task", "failed/model", "failed/infra", "engine_deaths", "restarts")
"""Counted up from the events and counters since the run was started or resumed last."""
MAX_ROWS = 64
"""Updates in a window."""
NUM_FIRST = 8
"""Updates of the run's beginning that are kept to compare with."""
RECENT = 10
"""Updates that shares and rates are of."""


@dataclass(frozen=True, slots=True)
class Window:
    """A moment of a run.

    Attributes:
        rows: the last updates, the newest last.
        first: the first updates of the run.
        waited_s: seconds since the last update (or the start); None where nothing is waited for: the run has ended,
            or is paused.
        free_disk: share of the run folder's file system that is free; None where it is not known.
    """

    rows: Sequence[Row] = ()
    first: Sequence[Row] = ()
    waited_s: float | None = None
    free_disk: float | None = None

    def values(self, name: str, most: int = MAX_ROWS) -> list[float]:
        """Return the finite values of a statistic in the last ``most`` updates."""
        return _finite(row[name] for row in self.rows[-most:] if name in row)

    def level(self, name: str, most: int = 5) -> float | None:
        """Return the median of the last values, or None where there are fewer than three."""
        values = self.values(name, most)
        return median(values) if len(values) >= min(3, most) else None

    def grown(self, name: str, most: int = RECENT) -> float | None:
        """Return by how much a count has grown over the last updates; one that began anew counts from 0."""
        values = self.values(name, most + 1)
        if len(values) < 2:
            return values[0] if values and len(self.rows) == 1 else None
        return sum(later - earlier if later >= earlier else later for earlier, later in pairwise(values))


def _finite(values: Iterable[float]) -> list[float]:
    return [float(value) for value in values if math.isfinite(value)]
