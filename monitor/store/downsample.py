"""Fewer points of a curve, none of its peaks lost."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def keep_extremes(values: Floats, max_points: int) -> npt.NDArray[np.intp]:
    """Return the indices of at most ``max_points`` of ``values``, in order: the extremes of equal stretches.

    Every stretch shows its extremes, so a spike of one point is never smoothed away. NaNs count as no value; a stretch
    of nothing else gives its first one, so that a gap stays a gap.

    Args:
        values: [N].
        max_points: at least 4; the first and the last point are always among them.
    """
    num = len(values)
    if num <= max_points:
        return np.arange(num)
    edges = np.linspace(0, num, max(1, (max_points - 2) // 2) + 1).astype(np.intp)
    starts = edges[:-1]
    stretch = np.repeat(np.arange(len(starts)), np.diff(edges))
    chosen = [np.array([0, num - 1], np.intp)]
    for sign in (1.0, -1.0):
        keys = np.where(np.isnan(values), np.inf, sign * values)
        least = np.minimum.reduceat(keys, starts)
        hits = np.flatnonzero(keys == least[stretch])
        _, first = np.unique(stretch[hits], return_index=True)
        chosen.append(hits[first])
    return np.unique(np.concatenate(chosen))
