"""Fewer points of a curve, none of its peaks lost; fewer spans of a timeline, none of its seconds lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rollcage.monitor.store.columns import SPAN

Floats = npt.NDArray[np.float64]

MOST = 1 << 18
"""Points of a curve that an index keeps, and spans in all: 4 MiB of each curve. Then it goes on with half of them."""
NEWEST = 1 << 13
"""Of these the newest, and as many of the oldest as `FIRST`, are kept as they are."""
FIRST = 256


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


def latest(points: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a curve over versions in order; of points with the same ``at`` the newest: those of a resumed run."""
    if not np.any(np.diff(points["at"]) <= 0):
        return points
    _, newest = np.unique(points["at"][::-1], return_index=True)
    return points[len(points) - 1 - newest]


def thinned(points: npt.NDArray[Any], most: int = MOST // 2, newest: int = NEWEST) -> npt.NDArray[Any]:
    """Return at most ``most`` points, in the order of writing: the first and the newest, and between them the extremes.

    The stretches whose extremes are kept are equally long in ``at``, so that a curve which is thinned again and again
    is as fine at its beginning as at its end.

    Args:
        points: [N] of `rollcage.monitor.store.columns.POINT`.
        most: above ``newest`` + `FIRST`.
        newest: how many at the end are kept.
    """
    if len(points) <= most:
        return points
    inner = slice(FIRST, len(points) - newest)
    at, values = points["at"][inner], points["value"][inner]
    num_cells = max(1, (most - FIRST - newest) // 2)
    low, high = float(np.nanmin(at)), float(np.nanmax(at))
    cell = np.nan_to_num((at - low) / max(high - low, 1e-9) * num_cells).astype(np.int64).clip(0, num_cells - 1)
    keep = np.zeros(len(points), bool)
    keep[:FIRST] = keep[len(points) - newest :] = True
    for sign in (1.0, -1.0):
        keys = np.where(np.isnan(values), np.inf, sign * values)
        order = np.lexsort((keys, cell))
        _, first = np.unique(cell[order], return_index=True)
        keep[FIRST + order[first]] = True
    return points[keep]


def merged(spans: npt.NDArray[Any], max_spans: int) -> npt.NDArray[Any]:
    """Return spans in the order of their starts; neighbours of one track and name become one where they are too many.

    The window is cut into equal cells, and what starts in the same cell becomes one.

    Args:
        spans: [N] of `rollcage.monitor.store.columns.SPAN`.
        max_spans: most to return, wherever there are fewer tracks and names than that.
    """
    spans = spans[np.argsort(spans["start_s"], kind="stable")]
    if len(spans) <= max_spans:
        return spans
    kind = spans["track"].astype(np.int64) << 32 | spans["name"]
    first_s, last_s = float(spans["start_s"][0]), float(spans["start_s"][-1])
    num_cells = max(1, max_spans // len(np.unique(kind)))
    cell = np.minimum((spans["start_s"] - first_s) / max(last_s - first_s, 1e-9) * num_cells, num_cells - 1)
    _, first, group = np.unique(np.stack([kind, cell.astype(np.int64)]), axis=1, return_index=True, return_inverse=True)
    group = group.reshape(-1)
    result = np.empty(len(first), SPAN)
    result["start_s"], result["end_s"] = np.inf, -np.inf
    np.minimum.at(result["start_s"], group, spans["start_s"])
    np.maximum.at(result["end_s"], group, spans["end_s"])
    for name in ("busy_s", "num"):
        result[name] = np.bincount(group, weights=spans[name])
    for name in ("track", "name"):
        result[name] = spans[name][first]
    return result[np.argsort(result["start_s"], kind="stable")]


def merged_but_newest(spans: npt.NDArray[Any], most: int = MOST // 2, newest: int = NEWEST) -> npt.NDArray[Any]:
    """Return `merged` spans, ``most`` at most, of which the last ``newest`` are as they were."""
    if len(spans) <= most:
        return spans
    return np.concatenate([merged(spans[:-newest], most - newest), spans[-newest:]])
