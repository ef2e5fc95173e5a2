"""``rollcage bench monitor``: how long viewers wait for the dashboard's answers while many runs write."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from rollcage.benchmarks.machine import describe
from rollcage.command import CommandParser, natural_float, positive
from rollcage.errors import UserError
from rollcage.monitor.beside import dashboard

LOOKS = (
    "/api/runs",
    "/api/runs/{run}/status",
    "/api/runs/{run}/series?names=rollout%2Freward&names=learner%2Fstatistic_0&names=learner%2Fstatistic_1",
    "/api/runs/{run}/gauges",
    "/api/runs/{run}/timeline",
    "/api/runs/{run}/events?limit=100",
    "/api/runs/{run}/trajectories?limit=50",
    "/api/runs/{run}/account",
    "/api/runs/{run}/alerts",
    "/api/compare?runs={run}&names=rollout%2Freward",
)
"""What a viewer asks for, again and again, each after the pages' own pause."""
PAUSE_S = 0.5


class Viewer(threading.Thread):
    """One viewer: a stream of changes, and requests one after another on a connection that stays."""

    def __init__(self, port: int, run_id: str, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._port, self._run, self._ended = port, quote(run_id, safe=""), ended
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.faults: list[str] = []
        self.num_changes = 0

    def run(self) -> None:
        """Look until the end."""
        stream = threading.Thread(target=self._follow, daemon=True)
        stream.start()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        while not self._ended.is_set():
            for look in LOOKS:
                begin_s = time.monotonic()
                try:
                    connection.request("GET", look.format(run=self._run))
                    answer = connection.getresponse()
                    answer.read()
                    if answer.status != 200:
                        self.faults.append(f"{look}: {answer.status}")
                except (OSError, http.client.HTTPException) as error:
                    self.faults.append(f"{look}: {error!r}")
                    connection.close()
                self.seconds[look].append(time.monotonic() - begin_s)
                if self._ended.wait(PAUSE_S):
                    break
        connection.close()
        stream.join(5)

    def _follow(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request("GET", f"/api/stream?run={self._run}")
            answer = connection.getresponse()
            while not self._ended.is_set() and (line := answer.readline()):
                self.num_changes += line.startswith(b"event: change")
        except (OSError, http.client.HTTPException) as error:
            if not self._ended.is_set():
                self.faults.append(f"stream: {error!r}")
        finally:
            connection.close()


def main(argv: Sequence[str]) -> int:
    """``rollcage bench monitor``; exit code 0 only where 95 % of the answers came within the limit, and all came."""
    parser = CommandParser(
        "rollcage bench monitor",
        "Let many viewers look at runs that write at once, and time every answer, as a browser on this machine sees\n"
        "it. An hour's writes in a minute: --points-per-s 60000 of a run that writes 1,000.",
        "rollcage bench monitor\nrollcage bench monitor --viewers 5 --runs 2 --seconds 10 --json",
    )
    parser.add_argument("--viewers", type=positive, default=20, help="at once (20)")
    parser.add_argument("--runs", type=positive, default=10, help="that write at once (10)")
    parser.add_argument("--points-per-s", type=natural_float, default=1000.0, metavar="N", help="in all (1000)")
    parser.add_argument("--seconds", type=natural_float, default=60.0, metavar="S", help="of looking (60)")
    parser.add_argument(
        "--limit-s", type=natural_float, default=0.5, metavar="S", help="for 95 %% of the answers (0.5)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line on stdout")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder) / "runs", args.viewers, args.runs, args.points_per_s, args.seconds)
    for name, value in figures.items():
        sys.stdout.write(f"{name:<44}{value}\n")
    if args.json:
        sys.stdout.write(json.dumps(figures | {"machine": describe()}) + "\n")
    return 0 if figures["p95_s"] <= args.limit_s and not figures["faults"] else 1


def measure(folder: Path, num_viewers: int, num_runs: int, points_per_s: float, seconds: float) -> dict[str, Any]:
    """Return the figures by name: seconds of answers over all looks, and the slowest look's."""
    command = [sys.executable, "-m", "rollcage.benchmarks.monitor.writers", str(folder)]
    command += [str(num_runs), str(points_per_s), str(seconds + 1.0)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writers:
        assert writers.stdout is not None
        try:
            if writers.stdout.readline() != "ready\n":
                raise UserError("the writers did not start: see above.")
            with dashboard(folder) as address:
                port, ended = int(address.partition("/#")[0].rpartition(":")[2]), threading.Event()
                viewers = [Viewer(port, f"run-{number % num_runs}", ended) for number in range(num_viewers)]
                for viewer in viewers:
                    viewer.start()
                ended.wait(seconds)
                ended.set()
                for viewer in viewers:
                    viewer.join(40)
            written = int(writers.stdout.readline() or 0)
        finally:
            writers.kill()
    by_look = {look: np.concatenate([viewer.seconds[look] for viewer in viewers]) for look in LOOKS}
    everything = np.concatenate(list(by_look.values()))
    slowest = max(by_look, key=lambda look: float(np.quantile(by_look[look], 0.95)) if len(by_look[look]) else 0.0)
    faults = [fault for viewer in viewers for fault in viewer.faults]
    return {
        "viewers": num_viewers,
        "runs": num_runs,
        "points_written": written,
        "answers": len(everything),
        "p50_s": round(float(np.quantile(everything, 0.5)), 4),
        "p95_s": round(float(np.quantile(everything, 0.95)), 4),
        "max_s": round(float(everything.max()), 4),
        "slowest_look": slowest,
        "slowest_look_p95_s": round(float(np.quantile(by_look[slowest], 0.95)), 4),
        "changes_told": sum(viewer.num_changes for viewer in viewers),
        "faults": faults[:10],
    }
