"""``rollcage bench store``: how long a large run takes to open, to look into, and to follow."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rollcage.benchmarks.machine import describe
from rollcage.benchmarks.monitor.large_run import write_large_run
from rollcage.command import CommandParser, positive
from rollcage.monitor.store import RunReader

_OPEN = """
import json, sys, time
from rollcage.monitor.store import RunReader
began_s = time.perf_counter()
with RunReader(sys.argv[1]) as reader:
    status = reader.status()
    names = reader.metric_names()
    curves = reader.series(names[:6])
    total, page = reader.trajectories(limit=50)
    print(json.dumps([time.perf_counter() - began_s, status["policy_version"], len(names), total, len(page)]))
"""
"""A new process opens the run and takes what a first page shows: status, six curves, fifty trajectories."""


def main(argv: Sequence[str]) -> int:
    """``rollcage bench store``; exit code 0 only where opening takes less than two seconds."""
    parser = CommandParser(
        "rollcage bench store",
        "Write a large run through the real recorder, leave it as kill -9 would, and time what a dashboard does with\n"
        "it. Opening is in a new process each time, without its start: status, six curves, fifty trajectories.",
        "rollcage bench store\nrollcage bench store --points 1000000 --trajectories 10000 --json",
    )
    parser.add_argument("--points", type=positive, default=10_000_000, help="of metrics (default: 10 million)")
    parser.add_argument("--trajectories", type=positive, default=100_000, help="(default: 100,000)")
    parser.add_argument("--out", type=Path, help="folder for the run, which stays; default: a temporary one")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line on stdout")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        run = (arguments.out or Path(temporary)) / "run"
        figures = measure(run, arguments.points, arguments.trajectories)
    for name, value in figures.items():
        sys.stdout.write(f"{name:<44}{value:>12,.3f}\n" if isinstance(value, float) else f"{name:<44}{value:>12}\n")
    if arguments.json:
        sys.stdout.write(json.dumps(figures | {"machine": describe()}) + "\n")
    return 0 if figures["open, after kill -9 (s)"] < 2.0 else 1


def measure(run: Path, num_points: int, num_trajectories: int) -> dict[str, Any]:
    """Write the run where it is not there, and return the figures by name."""
    figures: dict[str, Any] = {"points": num_points, "trajectories": num_trajectories}
    if not run.exists():
        figures["write (s)"] = _seconds(
            lambda: write_large_run(run, num_points=num_points, num_trajectories=num_trajectories)
        )
    figures["open, after kill -9 (s)"] = _open(run)
    figures["open again (s)"] = _open(run)
    with RunReader(run) as reader:
        names = reader.metric_names()
        figures["all curves, 2,000 points each (s)"] = _seconds(lambda: reader.series(names))
        figures["search for text (s)"] = _seconds(lambda: reader.trajectories(text="no answer", failure="infra"))
        figures["the best of a range of versions (s)"] = _seconds(
            lambda: reader.trajectories(min_version=10, sort="return", success=True)
        )
        _, [first] = reader.trajectories(descending=False, limit=1)
        _, [last] = reader.trajectories(limit=1)
        figures["the oldest trajectory, compressed (s)"] = _seconds(lambda: reader.trajectory(first["key"]))
        figures["the newest trajectory (s)"] = _seconds(lambda: reader.trajectory(last["key"]))
    size = sum(path.stat().st_size for path in run.glob("*.jsonl*"))
    figures["rows on disk (MB)"] = size / 1e6
    figures["index on disk (MB)"] = sum(path.stat().st_size for path in (run / "index").iterdir()) / 1e6
    shutil.rmtree(run / "index")
    figures["open, index deleted: made anew (s)"] = _open(run)
    return figures


def _seconds(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def _open(run: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _OPEN, str(run)], capture_output=True, text=True, check=True, timeout=600
    )
    return float(json.loads(done.stdout)[0])
