"""What became of the samples: the conservation account, success by task, and failures by kind."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rollcage.monitor.failures import failures, sample_failures
from rollcage.monitor.sample_shares import numbers
from rollcage.monitor.shares_read import shares_of
from rollcage.monitor.store import RunReader

COLUMNS = ("started", "trained", "filtered", "stale", "failed", "cancelled", "in_flight")
MAX_READ = 20_000
"""Newest trajectories that are counted."""
MAX_TASKS = 200


def account(reader: RunReader) -> dict[str, Any]:
    """Return the conservation account: its last columns, whether they add up, and its course."""
    series = reader.series([f"account/{column}" for column in COLUMNS], max_points=500)
    last = {
        column: int(series[f"account/{column}"][1][-1]) for column in COLUMNS if len(series[f"account/{column}"][1])
    }
    difference = last.get("started", 0) - sum(last.get(column, 0) for column in COLUMNS[1:])
    versions = series["account/started"][0]
    kinds = Counter(f"{event.get('kind')}/{event.get('reason')}" for event in sample_failures(reader))
    return {
        "columns": last,
        "difference": difference,
        "balanced": difference == 0,
        "policy_version": int(versions[-1]) if len(versions) else 0,
        "failed_by_kind": dict(kinds.most_common()),
        "series": _aligned({column: series[f"account/{column}"] for column in COLUMNS}),
    }


def environments(reader: RunReader) -> dict[str, Any]:
    """Return success by environment, task and difficulty, and the failures by kind with their messages."""
    _, found = reader.trajectories(limit=MAX_READ)
    by_task = sorted(_rates(found, "task_id"), key=lambda row: (-row["failed"], row["success"] or 0.0))
    shares = shares_of(reader)
    buckets = {
        dimension: [
            {"upper": upper, "num": number, **{name: outcomes.get(upper, Counter())[name] for name in _OUTCOMES}}
            for upper, number in numbers(dimension, outcomes).items()
        ]
        for dimension, outcomes in shares.items()
    }
    return {
        "num_read": len(found),
        "by_env": _rates(found, "env_id"),
        "by_task": by_task[:MAX_TASKS],
        "by_difficulty": buckets.get("difficulty", []),
        "by_length": buckets.get("length_tokens", []),
        "by_duration": buckets.get("duration_s", []),
        "failures": failures(sample_failures(reader)),
    }


_OUTCOMES = ("trained", "filtered", "failed", "stale", "late")


def _rates(found: Iterable[Mapping[str, Any]], key: str) -> list[dict[str, Any]]:
    grouped: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in found:
        grouped[str(row.get(key))].append(row)
    result = []
    for name, rows in grouped.items():
        scored = [row for row in rows if not row.get("failure_kind")]
        result.append(
            {
                key: name,
                "num": len(rows),
                "num_scored": len(scored),
                "failed": len(rows) - len(scored),
                "success": float(np.mean([bool(row["success"]) for row in scored])) if scored else None,
                "reward": float(np.mean([row["return"] for row in scored])) if scored else None,
            }
        )
    return result


def _aligned(series: Mapping[str, tuple[Any, Any]]) -> dict[str, list[Any]]:
    """Return columns over the versions of the first one."""
    versions = series["started"][0].tolist()
    columns: dict[str, list[Any]] = {"policy_version": versions}
    for name, (at, values) in series.items():
        known = dict(zip(at.tolist(), values.tolist(), strict=True))
        columns[name] = [known.get(version) for version in versions]
    return columns
