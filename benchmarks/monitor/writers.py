"""Runs that write at once, at a fixed pace: ``python -m rollcage.benchmarks.monitor.writers FOLDER RUNS RATE S``."""

from __future__ import annotations

import fcntl
import json
import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from rollcage.benchmarks.monitor.large_run import NAMES, trajectory
from rollcage.monitor.run_folder import RunFolder

GAUGES = 5
POINTS = len(NAMES) + GAUGES
"""Points of one update."""


def write_runs(folder: Path, num_runs: int, points_per_s: float, seconds: float) -> int:
    """Write updates of all runs in turn, each with one episode and one event; returns how many points were written.

    Where the machine cannot keep the pace, fewer are.

    Args:
        folder: where the runs are; made.
        num_runs: of them; each is held as a running one.
        points_per_s: of all together.
        seconds: for so long.
    """
    rng = random.Random(0)
    with ExitStack() as held:
        runs = []
        for number in range(num_runs):
            path = folder / f"run-{number}"
            path.mkdir(parents=True, exist_ok=True)
            config = {"rollout": {}, "num_updates": 10**6, "seed": number, "model": "small", "env": {"id": "bench"}}
            (path / "config.json").write_text(json.dumps({"command": "a benchmark", "config": config}))
            fcntl.flock(held.enter_context((path / "lock").open("a")), fcntl.LOCK_EX)
            run = RunFolder(path)
            held.callback(run.close)
            run.event("start", resumed_from=None)
            run.event("training", policy_version=0)
            runs.append(run)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        begin_s, num_updates = time.monotonic(), 0
        while (now_s := time.monotonic() - begin_s) < seconds:
            if num_updates * POINTS > points_per_s * now_s:
                time.sleep(0.002)
                continue
            run, version = runs[num_updates % num_runs], 1 + num_updates // num_runs
            num_updates += 1
            run.trajectory(trajectory(rng, num_updates, version, 120))
            run.event("checkpoint", path=f"step-{version}", policy_version=version)
            run.span("learner", "train", now_s, now_s + 0.1, policy_version=version)
            for gauge in range(GAUGES):
                run.gauge(f"gauge_{gauge}", rng.random(), at_s=now_s)
            run.metrics({name: rng.random() for name in NAMES} | {"time/elapsed_s": now_s}, policy_version=version)
    return num_updates * POINTS


if __name__ == "__main__":
    sys.stdout.write(f"{write_runs(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))}\n")
