"""What the runs of a study reached, and how far they differ from those that they are compared with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

from rollcage.benchmarks.learning.gain import gain_ci95
from rollcage.benchmarks.learning.studies import Arm
from rollcage.monitor.run_folder import read_metrics, read_rows

SMOOTH = 5
"""Updates over which a training curve is averaged before it is asked when it reached a level."""

LEVEL = 0.9
"""Time to equal success: until the curve reached this share of where the run that it is compared with ended."""

COLLAPSE = 0.7
"""A run has collapsed that ends, averaged so, below this share of its own best."""


@dataclass(frozen=True)
class Outcome:
    """What one run reached.

    Attributes:
        arm: name of its kind.
        seed: its seed.
        before, after: success on held-out tasks, and num_tasks their number.
        train_s: seconds of training.
        update_s: median seconds of one update in the learner.
        peak_memory_bytes: of its largest process.
        staleness, staleness_max: of its samples, in policy versions.
        curve: (seconds, success of the batch) of every update.
        statistics: means over the updates of what the learner reports.
    """

    arm: str
    seed: int
    before: float
    after: float
    num_tasks: int
    train_s: float
    update_s: float
    peak_memory_bytes: int
    staleness: float
    staleness_max: float
    curve: list[tuple[float, float]]
    statistics: dict[str, float] = field(default_factory=dict)

    @property
    def has_collapsed(self) -> bool:
        """Whether its success fell and stayed down; see `COLLAPSE`."""
        smooth = smoothed(self.curve)
        return smooth[-1] < COLLAPSE * max(smooth)


def smoothed(curve: Sequence[tuple[float, float]]) -> list[float]:
    """Return, for every update, the mean success of the last `SMOOTH`."""
    return [mean(success for _, success in curve[max(0, at - SMOOTH + 1) : at + 1]) for at in range(len(curve))]


def read_outcome(arm: Arm, seed: int, folder: Path) -> Outcome:
    """Return what a finished run reached."""
    metrics = read_metrics(folder)
    success = {row["when"]: row for row in read_rows(folder, "evaluations")}
    names = sorted({name for row in metrics for name in row if name.startswith("learner/")})
    marker = folder.with_name(folder.name + ".json")
    facts = json.loads(marker.read_text(encoding="utf-8")) if marker.is_file() else {}
    return Outcome(
        arm=arm.name,
        seed=seed,
        before=success["before"]["success_rate"],
        after=success["after"]["success_rate"],
        num_tasks=success["after"]["num_scored"],
        train_s=metrics[-1]["time/elapsed_s"],
        update_s=median(row["time/train_s"] for row in metrics),
        peak_memory_bytes=facts.get("peak_memory_bytes", 0),
        staleness=mean(row["rollout/staleness"] for row in metrics),
        staleness_max=max(row["rollout/staleness_max"] for row in metrics),
        curve=[(round(row["time/elapsed_s"], 2), row["rollout/success"]) for row in metrics],
        statistics={name.removeprefix("learner/"): mean(row[name] for row in metrics if name in row) for name in names},
    )


def pairs(outcomes: Sequence[Outcome], arm: Arm) -> list[tuple[Outcome, Outcome]]:
    """Return, for every seed that has both, the run of ``arm`` and the one that it is compared with."""
    runs = {(run.arm, run.seed): run for run in outcomes}
    return [
        (run, runs[arm.against, run.seed])
        for run in outcomes
        if run.arm == arm.name and (arm.against, run.seed) in runs
    ]


def differences(outcomes: Sequence[Outcome], arm: Arm) -> list[float]:
    """Return, for every seed that has both runs, how far the arm's final success lies above, in points."""
    return [100 * (run.after - other.after) for run, other in pairs(outcomes, arm)]


def half_width(points: Sequence[float]) -> float:
    """Return half the width of the mean's 95 % interval; NaN for a single value."""
    _, low, high = gain_ci95(points)
    return (high - low) / 2


def seconds_to(curve: Sequence[tuple[float, float]], level: float) -> float | None:
    """Return when the mean of the last `SMOOTH` updates first reached ``level``; None where it never did."""
    whole = min(SMOOTH, len(curve)) - 1
    for at, success in enumerate(smoothed(curve)):
        if at >= whole and success >= level:
            return curve[at][0]
    return None


def seconds_to_equal_success(outcomes: Sequence[Outcome], arm: Arm) -> list[float]:
    """Return, for every seed, the seconds until ``arm`` reached `LEVEL` of the other's end; infinite if never."""
    times = [seconds_to(run.curve, LEVEL * smoothed(other.curve)[-1]) for run, other in pairs(outcomes, arm)]
    return [float("inf") if seconds is None else seconds for seconds in times]
