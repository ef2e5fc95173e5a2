"""The run folder: the recorder that writes one run to disk, one JSON line at a time, readable while it grows.

config.json         what was asked for
metrics.jsonl       a row of training statistics per update
events.jsonl        what happened: failures, checkpoints, resumes
timeline.jsonl      spans (who was busy when) and gauges over time, in seconds of the run's clock
trajectories.jsonl  every episode
annotations.jsonl   what the trainer made of the tokens of each sample
evaluations.jsonl   every evaluation
logs/               what the run's processes write, on a cluster too
index/              made of the rows for fast reading (`rollcage.monitor.store`); safe to delete
checkpoints/        see the trainer
report/             see `rollcage.monitor.report`

A stream that has grown large is continued in a new file, and what was written is compressed: STREAM-000001.jsonl.gz,
STREAM-000002.jsonl.gz ... (`rollcage.monitor.store.segments`).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from rollcage.errors import UserError
from rollcage.monitor.store.housekeeping import Housekeeping
from rollcage.monitor.store.limits import MIB, StoreConfig
from rollcage.monitor.store.segments import START, Streams, close_segment, open_for_append
from rollcage.monitor.store.summary import labelled, parse

STREAMS = ("metrics", "events", "timeline", "trajectories", "annotations", "evaluations")


class RunFolder:
    """Writes a run; implements the Recorder protocol. Every line is handed to the system before the call returns.

    Args:
        path: the folder; made at the first write where missing.
        limits: how large it may grow.
    """

    def __init__(self, path: str | Path, limits: StoreConfig | None = None) -> None:
        self.path = Path(path)
        self._limits = limits or StoreConfig()
        self._files: dict[str, tuple[BinaryIO, int]] = {}
        self._housekeeping = Housekeeping(self.path, self._limits)
        self._lock = threading.Lock()
        self._counters: dict[str, float] = {}

    def write(self, stream: str, row: Mapping[str, Any]) -> None:
        """Append one row to ``stream``."""
        line = (json.dumps({"time": round(time.time(), 3), **row}, default=_plain) + "\n").encode()
        with self._lock:
            if stream not in self._files:
                file = open_for_append(self.path / f"{stream}.jsonl")
                self._files[stream] = file, file.seek(0, 2)
            file, size = self._files[stream]
            try:
                _write_all(file, line)
            except OSError:  # a full disk, say: opened anew, what is half written is cut off
                file.close()
                del self._files[stream]
                raise
            size += len(line)
            self._files[stream] = file, size
            if size >= self._limits.segment_mib * MIB:
                file.close()
                del self._files[stream]
                close_segment(self.path, stream)
                self._housekeeping.segment_closed()

    def counter(self, name: str, value: float = 1.0, **labels: str) -> None:
        """See `Recorder`. Totals go into the next metrics row, as ``name{label=value}``."""
        key = labelled(name, labels)
        with self._lock:
            self._counters[key] = self._counters.get(key, 0.0) + value

    def gauge(self, name: str, value: float, *, at_s: float | None = None, **labels: str) -> None:
        """See `Recorder`."""
        self.write("timeline", {"gauge": name, "value": value, "at_s": at_s, **labels})

    def histogram(self, name: str, value: float, **labels: str) -> None:
        """See `Recorder`."""
        self.write("timeline", {"histogram": name, "value": value, **labels})

    def metrics(self, values: Mapping[str, float], *, policy_version: int) -> None:
        """See `Recorder`."""
        with self._lock:
            counters = dict(self._counters)
        self.write("metrics", {"policy_version": policy_version, **values, "counters": counters})

    def event(self, name: str, **fields: Any) -> None:
        """See `Recorder`."""
        self.write("events", {"event": name, **fields})

    def span(self, track: str, name: str, start_s: float, end_s: float, **fields: Any) -> None:
        """See `Recorder`."""
        self.write("timeline", {"span": name, "track": track, "start_s": start_s, "end_s": end_s, **fields})

    def trajectory(self, record: Mapping[str, Any]) -> None:
        """See `Recorder`."""
        self.write("trajectories", record)

    def annotations(self, record: Mapping[str, Any]) -> None:
        """See `Recorder`."""
        self.write("annotations", record)

    def close(self) -> None:
        """Close the files, and compress what is to be; idempotent (a later write opens them again)."""
        with self._lock:
            for file, _ in self._files.values():
                file.close()
            self._files.clear()
        self._housekeeping.close()


def _write_all(file: BinaryIO, line: bytes) -> None:
    view = memoryview(line)
    while view:  # one system call, but for lines beyond 2 GiB and signals
        view = view[file.write(view) :]


def _plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's; anything else as its text."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def read_rows(folder: str | Path, stream: str) -> list[dict[str, Any]]:
    """Return the rows of a stream; an unfinished or damaged line is left out, a missing stream is empty.

    The one primitive for whoever wants all rows of a finished run; `rollcage.monitor.store.RunReader` reads parts.

    Raises:
        UserError: ``folder`` is not a run folder.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: not a run folder (no config.json); give the folder that `rollcage train` printed.")
    rows = (parse(line) for _, line in Streams(folder).lines(stream, START))
    return [row for row in rows if row is not None]


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """Return one metrics row per policy version, in order; a version trained again after a resume counts once."""
    rows = {row["policy_version"]: row for row in read_rows(folder, "metrics")}
    return [rows[version] for version in sorted(rows)]
