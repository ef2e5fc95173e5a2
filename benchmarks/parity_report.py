"""The report of `rollcage bench parity`: what each run reached, differences by seed, curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from rollcage.benchmarks.learning import gain_ci95
from rollcage.benchmarks.machine import describe
from rollcage.monitor.run_folder import read_metrics, read_rows

SMOOTH = 5
"""Updates over which a training curve is averaged before it is asked when it reached a level."""

LEVEL = 0.9
"""Time to equal success: until the curve reached this share of where the synchronous run of its seed ended."""


@dataclass(frozen=True)
class Plan:
    """Which runs there are, and what they have in common."""

    losses: tuple[str, ...]
    alphas: tuple[float, ...]
    """Asynchronous ratios; 0, the synchronous run, is what the others are compared with."""
    settle: tuple[float, ...]
    """Those of them whose difference is to be known to within ``half_width``."""
    min_seeds: int
    max_seeds: int
    half_width: float
    """Points."""
    preset: str
    arguments: tuple[str, ...]
    """Of `rollcage train`, after the preset."""


@dataclass(frozen=True)
class Cell:
    """One run."""

    loss: str
    alpha: float
    seed: int

    def folder(self, runs: Path) -> Path:
        """Return its run folder."""
        return runs / f"{self.loss}-alpha{self.alpha:g}-seed{self.seed}"

    def arguments(self, plan: Plan, folder: Path) -> list[str]:
        """Return the arguments of `rollcage train`."""
        own = ["--learner.loss", self.loss, "--rollout.async-ratio", f"{self.alpha:g}", "--seed", str(self.seed)]
        return [plan.preset, *plan.arguments, *own, "--out", str(folder)]


@dataclass(frozen=True)
class Outcome:
    """What one run reached.

    Attributes:
        cell: which run.
        before, after: success on held-out tasks, and num_tasks their number.
        train_s: seconds of training.
        staleness, staleness_max: of its samples, in policy versions.
        curve: (seconds, success of the batch) of every update.
        statistics: means over the updates of what the loss reports.
    """

    cell: Cell
    before: float
    after: float
    num_tasks: int
    train_s: float
    staleness: float
    staleness_max: float
    curve: list[tuple[float, float]]
    statistics: dict[str, float] = field(default_factory=dict)


def read_outcome(cell: Cell, folder: Path) -> Outcome:
    """Return what a finished run reached."""
    metrics = read_metrics(folder)
    success = {row["when"]: row for row in read_rows(folder, "evaluations")}
    names = ("ess", "clip_frac_high", "clip_frac_low", "logprob_gap_mean", "entropy", "weight")
    columns = {name: [row[f"learner/{name}"] for row in metrics if f"learner/{name}" in row] for name in names}
    return Outcome(
        cell=cell,
        before=success["before"]["success_rate"],
        after=success["after"]["success_rate"],
        num_tasks=success["after"]["num_scored"],
        train_s=metrics[-1]["time/elapsed_s"],
        staleness=mean(row["rollout/staleness"] for row in metrics),
        staleness_max=max(row["rollout/staleness_max"] for row in metrics),
        curve=[(round(row["time/elapsed_s"], 2), row["rollout/success"]) for row in metrics],
        statistics={name: mean(values) for name, values in columns.items() if values},
    )


def differences(outcomes: Sequence[Outcome], loss: str, alpha: float) -> list[float]:
    """Return, for every seed that has both runs, final success minus that of the synchronous run, in points."""
    return [100 * (run.after - sync.after) for run, sync in _pairs(outcomes, loss, alpha)]


def half_width(points: Sequence[float]) -> float:
    """Return half the width of the mean's 95 % interval; NaN for a single value."""
    _, low, high = gain_ci95(points)
    return (high - low) / 2


def _pairs(outcomes: Sequence[Outcome], loss: str, alpha: float) -> list[tuple[Outcome, Outcome]]:
    """Return, for every seed that has both, the run at ``alpha`` and the synchronous one."""
    runs = {run.cell: run for run in outcomes if run.cell.loss == loss}
    return [
        (run, runs[sync])
        for cell, run in runs.items()
        if cell.alpha == alpha and (sync := Cell(loss, 0, cell.seed)) in runs
    ]


def seconds_to(curve: Sequence[tuple[float, float]], level: float) -> float | None:
    """Return when the mean of the last `SMOOTH` updates first reached ``level``; None where it never did."""
    for end in range(1, len(curve) + 1):
        window = curve[max(0, end - SMOOTH) : end]
        if len(window) == min(SMOOTH, len(curve)) and mean(success for _, success in window) >= level:
            return window[-1][0]
    return None


def time_to_equal_success(outcomes: Sequence[Outcome], loss: str, alpha: float) -> list[float]:
    """Return, for every seed, the seconds until ``alpha`` reached `LEVEL` of the synchronous end; infinite if never."""
    levels = [
        (run.curve, LEVEL * mean(success for _, success in sync.curve[-SMOOTH:]))
        for run, sync in _pairs(outcomes, loss, alpha)
    ]
    times = [seconds_to(curve, level) for curve, level in levels]
    return [float("inf") if seconds is None else seconds for seconds in times]


def format_report(plan: Plan, argv: Sequence[str], outcomes: Sequence[Outcome]) -> str:
    """Return the results as a page."""
    lines = [
        "# Learning parity",
        "",
        f"`{' '.join(['rollcage bench parity', *argv])}`: `rollcage train {plan.preset} {' '.join(plan.arguments)}`, "
        "every loss at every asynchronous ratio alpha, the same seeds for all. Success on held-out tasks, sampled as "
        "in training; points against the synchronous run (alpha 0) of the same loss and seed, with the 95 % interval "
        "of the mean over seeds (Student's t). Seconds to equal success: until the mean of the last "
        f"{SMOOTH} batches reached {LEVEL:.0%} of where the synchronous run of the seed ended; median over seeds.",
        "",
        f"{describe()}",
        "",
        "| loss | alpha | seeds | before | after | against alpha 0, points | within 2 points | seconds to equal success"
        " | staleness mean (max) | ESS |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for loss in plan.losses:
        for alpha in plan.alphas:
            runs = [o for o in outcomes if o.cell.loss == loss and o.cell.alpha == alpha]
            if runs:
                lines.append(_row(plan, loss, alpha, runs, outcomes))
    return "\n".join(lines) + "\n"


def _row(plan: Plan, loss: str, alpha: float, runs: Sequence[Outcome], outcomes: Sequence[Outcome]) -> str:
    points, verdict = "-", "-"
    values = differences(outcomes, loss, alpha)
    if alpha and values:
        middle, low, high = gain_ci95(values)
        points = f"{middle:+.1f}" + (f" ({low:+.1f} to {high:+.1f})" if len(values) > 1 else "")
        known = half_width(values) <= plan.half_width
        verdict = (
            ("yes" if middle >= -2 else "no") if known else f"{middle:+.1f}, but half-width above {plan.half_width:g}"
        )
    times = time_to_equal_success(outcomes, loss, alpha)
    typical = median(times) if times else float("nan")
    reached = "-" if not times else "not reached" if typical == float("inf") else f"{typical:.0f}"
    ess = [run.statistics["ess"] for run in runs if "ess" in run.statistics]
    cells = [
        loss,
        f"{alpha:g}",
        str(len(runs)),
        f"{mean(run.before for run in runs):.1%}",
        f"{mean(run.after for run in runs):.1%}",
        points,
        verdict,
        reached,
        f"{mean(run.staleness for run in runs):.2f} ({max(run.staleness_max for run in runs):.0f})",
        f"{mean(ess):.3f}" if ess else "-",
    ]
    return "| " + " | ".join(cells) + " |"


def write_report(folder: Path, plan: Plan, argv: Sequence[str], outcomes: Sequence[Outcome]) -> None:
    """Write page, numbers and plot into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    page = format_report(plan, argv, outcomes) + ("\n![curves](parity.png)\n" if outcomes else "")
    (folder / "parity.md").write_text(page, encoding="utf-8")
    data = {"plan": asdict(plan), "outcomes": [asdict(outcome) for outcome in outcomes]}
    (folder / "parity.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if outcomes:
        plot(folder / "parity.png", plan, outcomes)


def plot(path: Path, plan: Plan, outcomes: Sequence[Outcome]) -> None:
    """Draw, for every loss, the training curves by update and by time, one colour an asynchronous ratio."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        2, len(plan.losses), figsize=(4 * len(plan.losses), 7), sharey=True, squeeze=False, constrained_layout=True
    )
    for column, loss in enumerate(plan.losses):
        for colour, alpha in enumerate(plan.alphas):
            curves = [o.curve for o in outcomes if o.cell.loss == loss and o.cell.alpha == alpha]
            for number, curve in enumerate(curves):
                success = [mean(s for _, s in curve[max(0, at - SMOOTH + 1) : at + 1]) for at in range(len(curve))]
                style: dict[str, Any] = {"color": f"C{colour}", "linewidth": 1, "alpha": 0.7}
                label = f"alpha {alpha:g}" if number == 0 else None
                axes[0][column].plot(range(1, len(curve) + 1), success, label=label, **style)
                axes[1][column].plot([seconds for seconds, _ in curve], success, label=label, **style)
        axes[0][column].set_title(loss)
        axes[0][column].set_xlabel("update")
        axes[1][column].set_xlabel("seconds of training")
    for row in axes:
        row[0].set_ylabel(f"success of the batch, mean of {SMOOTH}")
        for axis in row:
            axis.grid(alpha=0.3)
            if axis.lines:
                axis.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
