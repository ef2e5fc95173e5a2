"""What became of a run's samples by duration, length and difficulty, from its store."""

from __future__ import annotations

from rollcage.monitor.sample_shares import Buckets, sample_shares
from rollcage.monitor.store import RunReader
from rollcage.monitor.store.downsample import MOST


def shares_of(reader: RunReader) -> dict[str, Buckets]:
    """Return `sample_shares` of a run."""
    names = [name for name in reader.metric_names() if name.startswith("counter/samples_by_")]
    found = reader.series(names, max_points=MOST) if names else {}
    return sample_shares({name.removeprefix("counter/"): points for name, points in found.items()})
