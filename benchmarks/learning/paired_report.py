"""The report of `rollcage bench study`: what each arm reached, differences by seed, curves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, median
from typing import Any

from rollcage.benchmarks.learning.gain import gain_ci95
from rollcage.benchmarks.learning.outcomes import (
    COLLAPSE,
    LEVEL,
    SMOOTH,
    Outcome,
    differences,
    half_width,
    seconds_to_equal_success,
    smoothed,
)
from rollcage.benchmarks.learning.studies import Arm, Study
from rollcage.benchmarks.machine import describe


def format_report(
    study: Study,
    arms: Sequence[Arm],
    arguments: Sequence[str],
    limit: float,
    command: str,
    note: str,
    outcomes: Sequence[Outcome],
) -> str:
    """Return the results as a page."""
    lines = [
        f"# {study.title}",
        "",
        f"{study.question} `{command}`: `rollcage train {study.preset} {' '.join(arguments)}` with what each row "
        "names, the same seeds for all. Success on held-out tasks, sampled as in training; points against the run of "
        "the same seed that the row names, with the 95 % interval of the mean over seeds (Student's t). Collapsed: the "
        f"mean of the last {SMOOTH} batches ends below {COLLAPSE:.0%} of its best. Seconds to equal success: until "
        f"that mean reached {LEVEL:.0%} of where the run that it is compared with ended; median over seeds. Update: "
        "median seconds in the learner. Memory: of the largest process.",
        "",
        describe(),
        "",
        "| run | seeds | before | after | against | points | known to "
        f"{limit:g} points | collapsed | seconds to equal success | update | memory | staleness mean (max) | ESS |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in arms:
        runs = [run for run in outcomes if run.arm == arm.name]
        if runs:
            lines.append(_row(arm, limit, runs, outcomes))
    return "\n".join([*lines, *(["", note] if note else [])]) + "\n"


def _row(arm: Arm, limit: float, runs: Sequence[Outcome], outcomes: Sequence[Outcome]) -> str:
    points, known = "-", "-"
    if values := differences(outcomes, arm):
        middle, low, high = gain_ci95(values)
        points = f"{middle:+.1f}" + (f" ({low:+.1f} to {high:+.1f})" if len(values) > 1 else "")
        known = "yes" if half_width(values) <= limit else "no"
    times = seconds_to_equal_success(outcomes, arm)
    typical = median(times) if times else float("nan")
    ess = [run.statistics["ess"] for run in runs if "ess" in run.statistics]
    cells = [
        arm.name,
        str(len(runs)),
        f"{mean(run.before for run in runs):.1%}",
        f"{mean(run.after for run in runs):.1%}",
        arm.against or "-",
        points,
        known,
        str(sum(run.has_collapsed for run in runs)),
        "-" if not times else "not reached" if typical == float("inf") else f"{typical:.0f}",
        f"{median(run.update_s for run in runs):.2f} s",
        f"{max(run.peak_memory_bytes for run in runs) / 2**20:.0f} MiB",
        f"{mean(run.staleness for run in runs):.2f} ({max(run.staleness_max for run in runs):.0f})",
        f"{mean(ess):.3f}" if ess else "-",
    ]
    return "| " + " | ".join(cells) + " |"


def write_report(
    folder: Path,
    name: str,
    study: Study,
    arms: Sequence[Arm],
    arguments: Sequence[str],
    limit: float,
    command: str,
    note: str,
    outcomes: Sequence[Outcome],
) -> None:
    """Write page, numbers and plot into ``folder``, named after the study."""
    folder.mkdir(parents=True, exist_ok=True)
    page = format_report(study, arms, arguments, limit, command, note, outcomes)
    page += f"\n![curves]({name}.png)\n" if outcomes else ""
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
    data = {"command": command, "arguments": list(arguments), "outcomes": [asdict(outcome) for outcome in outcomes]}
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if outcomes:
        plot(folder / f"{name}.png", arms, outcomes)


def plot(path: Path, arms: Sequence[Arm], outcomes: Sequence[Outcome]) -> None:
    """Draw the training curves by update and by time: a column for each arm that others are compared with."""
    from matplotlib import pyplot as plt

    bases = [arm for arm in arms if not arm.against]
    figure, axes = plt.subplots(
        2, len(bases), figsize=(max(6, 4 * len(bases)), 7), sharey=True, squeeze=False, constrained_layout=True
    )
    for column, base in enumerate(bases):
        family = [base, *(arm for arm in arms if _root(arm, arms) == base.name and arm is not base)]
        for colour, arm in enumerate(family):
            for number, run in enumerate(run for run in outcomes if run.arm == arm.name):
                success = smoothed(run.curve)
                style: dict[str, Any] = {"color": f"C{colour}", "linewidth": 1, "alpha": 0.7}
                label = arm.name if number == 0 else None
                axes[0][column].plot(range(1, len(success) + 1), success, label=label, **style)
                axes[1][column].plot([seconds for seconds, _ in run.curve], success, label=label, **style)
        axes[0][column].set_title(f"against {base.name}")
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


def _root(arm: Arm, arms: Sequence[Arm]) -> str:
    """Return the name of what ``arm`` is compared with in the end: itself where with nothing."""
    by_name = {other.name: other for other in arms}
    while arm.against:
        arm = by_name[arm.against]
    return arm.name
