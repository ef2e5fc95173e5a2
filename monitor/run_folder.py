"""The run folder: the recorder that writes one run to disk, one JSON line at a time, readable while it grows.

config.json         what was asked for
metrics.jsonl       a row of training statistics per update
events.jsonl        what happened: failures, checkpoints, resumes
timeline.jsonl      spans (who was busy when) and gauges over time, in seconds of the run's clock
trajectories.jsonl  every episode
evaluations.jsonl   every evaluation
checkpoints/        see the trainer
report/             see `rollcage.monitor.report`
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from rollcage.errors import UserError

STREAMS = ("metrics", "events", "timeline", "trajectories", "evaluations")


class RunFolder:
    """Writes a run; implements the Recorder protocol. Every line is handed to the system before the call returns.

    Args:
        path: the folder; made at the first write where missing.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._files: dict[str, TextIO] = {}
        self._lock = threading.Lock()
        self._counters: dict[str, float] = {}

    def write(self, stream: str, row: Mapping[str, Any]) -> None:
        """Append one row to ``stream``."""
        line = json.dumps({"time": round(time.time(), 3), **row}, default=float) + "\n"
        with self._lock:
            file = self._files.get(stream)
            if file is None:
                file = self._files[stream] = _open_for_append(self.path / f"{stream}.jsonl")
            file.write(line)

    def counter(self, name: str, value: float = 1.0, **labels: str) -> None:
        """See `Recorder`. Totals go into the next metrics row, as ``name{label=value}``."""
        key = name + ("{" + ",".join(f"{k}={v}" for k, v in sorted(labels.items())) + "}" if labels else "")
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

    def close(self) -> None:
        """Close the files; idempotent (a later write opens them again)."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()


def _open_for_append(path: Path) -> TextIO:
    """Open for appending whole lines; a half-written last line (the writer was killed) is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        with path.open("rb+") as raw:
            data_end = raw.seek(0, 2)
            if data_end:
                raw.seek(max(0, data_end - 1_000_000))
                tail = raw.read()
                if not tail.endswith(b"\n"):
                    raw.truncate(data_end - (len(tail) - (tail.rfind(b"\n") + 1)))
    return path.open("a", encoding="utf-8", buffering=1)


def read_rows(folder: str | Path, stream: str) -> list[dict[str, Any]]:
    """Return the rows of a stream; an unfinished last line is left out, a missing stream is empty.

    Raises:
        UserError: ``folder`` is not a run folder.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: not a run folder (no config.json); give the folder that `rollcage train` printed.")
    path = folder / f"{stream}.jsonl"
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            rows.append(json.loads(line))
    return rows


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """Return one metrics row per policy version, in order; a version trained again after a resume counts once."""
    rows = {row["policy_version"]: row for row in read_rows(folder, "metrics")}
    return [rows[version] for version in sorted(rows)]
