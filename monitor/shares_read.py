"""What became of a run's samples by duration, length and difficulty, from its store."""

from __future__ import annotations

from collections import defaultdict

from rollcage.monitor.sample_shares import Buckets, sample_shares
from rollcage.monitor.store import RunReader


def shares_of(reader: RunReader) -> dict[str, Buckets]:
    """Return `sample_shares` of a run."""
    names = [name for name in reader.metric_names() if name.startswith("counter/samples_by_")]
    rows: dict[int, dict[str, float]] = defaultdict(dict)
    for name, (versions, values) in reader.series(names, max_points=1_000_000).items() if names else ():
        for version, value in zip(versions.tolist(), values.tolist(), strict=True):
            rows[version][name.removeprefix("counter/")] = value
    return sample_shares([{"counters": rows[version]} for version in sorted(rows)])
