"""Several runs side by side: the mean over the seeds of a configuration, with the band that the truth is in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rollcage.monitor.server.summary import group_of, label_of
from rollcage.monitor.store import RunReader

T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 97.5 % point of Student's t distribution with 1, 2, ... degrees of freedom."""

Points = Mapping[int, float]
"""Policy version -> value."""


def compare(readers: Mapping[str, RunReader], names: Sequence[str], max_points: int) -> list[dict[str, Any]]:
    """Return the groups of runs that differ only in their seeds, with the course of each statistic.

    Args:
        readers: run id -> reader.
        names: statistics.
        max_points: of each course.
    """
    grouped: dict[str, list[str]] = {}
    labels: dict[str, str] = {}
    for run_id, reader in readers.items():
        config = reader.config().get("config") or {}
        grouped.setdefault(group := group_of(config), []).append(run_id)
        labels[group] = label_of(config)
    result = []
    for group, ids in grouped.items():
        curves: dict[str, list[Points]] = {name: [] for name in names}
        for run_id in ids:
            # All points: runs that were each thinned out would have hardly any version in common.
            for name, (versions, values) in readers[run_id].series(names, max_points=1_000_000).items():
                curves[name].append(dict(zip(versions.tolist(), values.tolist(), strict=True)))
        series = {name: band(points, max_points) for name, points in curves.items()}
        result.append({"group": group, "label": labels[group], "runs": ids, "series": series})
    return result


def band(runs: Sequence[Points], max_points: int = 300) -> dict[str, list[Any]]:
    """Return mean and 95 % confidence interval of the mean, by policy version (Student's t over the runs).

    Args:
        runs: one course each; a run counts at the versions that it has.
        max_points: of the result; versions are left out evenly, first and last are kept.

    >>> band([{1: 0.0}, {1: 2.0}])
    {'policy_version': [1], 'mean': [1.0], 'low': [-11.706], 'high': [13.706], 'num': [2]}
    """
    versions = sorted({version for run in runs for version in run})
    if len(versions) > max_points:
        chosen = np.unique(np.linspace(0, len(versions) - 1, max_points).round().astype(int))
        versions = [versions[index] for index in chosen]
    result: dict[str, list[Any]] = {"policy_version": versions, "mean": [], "low": [], "high": [], "num": []}
    for version in versions:
        values = [run[version] for run in runs if version in run and math.isfinite(run[version])]
        mean = float(np.mean(values)) if values else None
        half = None
        if mean is not None and len(values) > 1:
            half = float(student_t(len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
        result["mean"].append(mean)
        result["low"].append(None if mean is None or half is None else mean - half)
        result["high"].append(None if mean is None or half is None else mean + half)
        result["num"].append(len(values))
    return result


def student_t(degrees: int) -> float:
    """Return the 97.5 % point of Student's t; beyond 30 degrees of freedom by Cornish and Fisher's expansion.

    >>> [round(student_t(it), 3) for it in (1, 30, 40, 1000)]
    [12.706, 2.042, 2.021, 1.962]
    """
    if degrees <= len(T_975):
        return T_975[degrees - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
