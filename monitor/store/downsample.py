"""Fewer points of a curve, none of its peaks lost; fewer spans of a timeline, none of its seconds lost."""

from __future__ import annotations

from typing import Any

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


def merged(spans: npt.NDArray[Any], max_spans: int) -> list[dict[str, Any]]:
    """Return spans in the order of their starts; neighbours of one track and name become one where they are too many.

    Each has ``track``, ``name``, ``start_s``, ``end_s``, ``num`` (how many it stands for) and ``busy_s`` (their seconds
    together). The window is cut into equal cells, and what starts in the same cell becomes one.

    Args:
        spans: [N] of `rollcage.monitor.store.columns.SPAN`.
        max_spans: most to return, wherever there are fewer tracks and names than that.
    """
    if not len(spans):
        return []
    spans = spans[np.argsort(spans["start_s"], kind="stable")]
    kind = spans["track"].astype(np.int64) << 32 | spans["name"]
    first_s, last_s = float(spans["start_s"][0]), float(spans["start_s"][-1])
    if len(spans) > max_spans:
        num_cells = max(1, max_spans // len(np.unique(kind)))
        cell = np.minimum((spans["start_s"] - first_s) / max(last_s - first_s, 1e-9) * num_cells, num_cells - 1)
        _, group = np.unique(np.stack([kind, cell.astype(np.int64)]), axis=1, return_inverse=True)
    else:
        group = np.arange(len(spans))
    group = group.reshape(-1)
    num = np.bincount(group)
    busy_s = np.bincount(group, weights=spans["end_s"] - spans["start_s"])
    start_s, end_s = np.full(len(num), np.inf), np.full(len(num), -np.inf)
    np.minimum.at(start_s, group, spans["start_s"])
    np.maximum.at(end_s, group, spans["end_s"])
    _, first = np.unique(group, return_index=True)
    return [
        {
            "track": int(spans["track"][first[i]]),
            "name": int(spans["name"][first[i]]),
            "start_s": float(start_s[i]),
            "end_s": float(end_s[i]),
            "num": int(num[i]),
            "busy_s": float(busy_s[i]),
        }
        for i in np.argsort(start_s, kind="stable")
    ]
