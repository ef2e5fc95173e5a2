"""``rollcage bench study``: runs of the same seeds that differ in one thing, until the difference is known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcage.benchmarks.learning.outcomes import Outcome, differences, half_width, read_outcome
from rollcage.benchmarks.learning.paired_report import format_report, write_report
from rollcage.benchmarks.learning.studies import STUDIES, Arm, Study, chosen
from rollcage.command import CommandParser, natural, natural_float, positive
from rollcage.errors import UserError, did_you_mean, require
from rollcage.monitor.run_folder import read_rows


@dataclass(frozen=True)
class Plan:
    """Which runs there are to be.

    Attributes:
        study: what is asked.
        arms: those of its arms that are wanted.
        min_seeds: seeds of every arm.
        max_seeds: seeds of any arm.
        half_width: seeds are added until the 95 % interval of the differences that matter is this narrow, in points.
        arguments: what all runs share, after the preset.
    """

    study: Study
    arms: tuple[Arm, ...]
    min_seeds: int
    max_seeds: int
    half_width: float
    arguments: tuple[str, ...]


def main(argv: Sequence[str]) -> int:
    """``rollcage bench study``: train every run that is missing, and report on all that are there."""
    listed = "\n".join(f"  {name:14}{make().question}" for name, make in STUDIES.items())
    parser = CommandParser(
        "rollcage bench study",
        "Train runs that differ in one thing, with paired seeds; reports final success on held-out tasks and its\n"
        "difference from the run of the same seed that each is compared with. Seeds are added until the differences\n"
        "that matter are known well enough. Call again to go on after a kill. The report grows with every run.\n\n"
        f"studies:\n{listed}",
        "rollcage bench study parity --output benchmarks/results        # 15 runs a seed, minutes each\n"
        "rollcage bench study parity --arms 'tis, alpha 2' 'tis, alpha 8' --max-seeds 3\n"
        "rollcage bench study parity --override=--rollout.hold-back --runs runs/at-bound   # samples as old as may be\n"
        "rollcage bench study credit --arms coupled random --output benchmarks/results\n"
        "rollcage bench study credit --report --output benchmarks/results",
    )
    parser.add_argument("study", help="see above")
    parser.add_argument("--arms", nargs="+", default=[], metavar="NAME", help="only these, and what they go against")
    parser.add_argument("--min-seeds", type=positive, help="seeds of every arm (default: the study's)")
    parser.add_argument("--max-seeds", type=positive, default=10, help="seeds of any arm (default: 10)")
    parser.add_argument(
        "--half-width",
        type=natural_float,
        default=2.0,
        metavar="POINTS",
        help="add seeds until the 95 %% interval of the differences that matter is this narrow (default: 2)",
    )
    parser.add_argument("--num-updates", type=positive, default=40, help="of each run (default: 40)")
    parser.add_argument("--num-tasks", type=natural, default=2048, help="of each evaluation (default: 2048)")
    parser.add_argument("--override", action="append", default=[], metavar="--FIELD=VALUE", help="of the preset")
    parser.add_argument("--report", action="store_true", help="start no run: report on those that are there")
    parser.add_argument("--runs", type=Path, default=Path("runs/studies"), help="where the runs go (%(default)s)")
    parser.add_argument("--output", type=Path, help="folder for the page, the numbers and the plot")
    parser.add_argument("--note", default="", help="what the page shall say of these runs (what else the machine did)")
    arguments = parser.parse_args(argv)
    require("matplotlib", "train").use("Agg")
    plan = make_plan(
        arguments.study,
        arguments.arms,
        seeds=(arguments.min_seeds, arguments.max_seeds),
        half_width=arguments.half_width,
        arguments=(
            f"--num-updates={arguments.num_updates}",
            "--max-train-s=1e9",  # equal numbers of updates, however long they take
            f"--eval.num-tasks={arguments.num_tasks}",
            "--eval.dataset=",
            *arguments.override,
        ),
    )
    command = " ".join(["rollcage bench study", *(f"'{word}'" if " " in word else word for word in argv)])
    page = (plan.study, plan.arms, plan.arguments, plan.half_width, command, arguments.note)
    outcomes: list[Outcome] = []
    for seed in range(plan.max_seeds):
        for arm in wanted(plan, seed, outcomes):
            folder = run_folder(arguments.runs, arguments.study, arm, seed)
            if not is_finished(folder):
                if arguments.report:
                    continue
                sys.stderr.write(f"{arguments.study}: {arm.name}, seed {seed}: {folder}\n")
                train(plan, arm, seed, folder)
            outcomes.append(read_outcome(arm, seed, folder))
            if arguments.output and not arguments.report:
                write_report(arguments.output, arguments.study, *page, outcomes)
    if arguments.output:
        write_report(arguments.output, arguments.study, *page, outcomes)
    sys.stdout.write(format_report(*page, outcomes))
    return 0


def make_plan(
    study: str,
    arms: Sequence[str],
    *,
    seeds: tuple[int | None, int],
    half_width: float,
    arguments: Sequence[str],
) -> Plan:
    """Put a plan together.

    Raises:
        UserError: there is no such study or arm, or the numbers of seeds contradict each other.
    """
    if study not in STUDIES:
        raise UserError(f"no study {study!r} (there are: {', '.join(STUDIES)}).{did_you_mean(study, STUDIES)}")
    asked = STUDIES[study]()
    names = [arm.name for arm in asked.arms]
    for name in arms:
        if name not in names:
            known = "; ".join(names)
            raise UserError(f"study {study} has no arm {name!r} (there are: {known}).{did_you_mean(name, names)}")
    least = seeds[0] or min(asked.min_seeds, seeds[1])
    if least > seeds[1]:
        raise UserError(f"--min-seeds {least} is above --max-seeds {seeds[1]}: set one of them.")
    return Plan(asked, chosen(asked, arms), least, seeds[1], half_width, tuple(arguments))


def wanted(plan: Plan, seed: int, outcomes: Sequence[Outcome]) -> list[Arm]:
    """Return the runs of one more seed: all of them at first, then those of differences that are not known yet."""
    if seed < plan.min_seeds:
        return list(plan.arms)
    names: set[str] = set()
    for arm in plan.arms:
        points = differences(outcomes, arm)
        if arm.settle and not (points and half_width(points) <= plan.half_width):  # NaN of a single seed counts as wide
            names |= {arm.name, arm.against}
    return [arm for arm in plan.arms if arm.name in names]


def run_folder(runs: Path, study: str, arm: Arm, seed: int) -> Path:
    """Return where the run of an arm and a seed lies."""
    return runs / study / f"{arm.slug}-seed{seed}"


def is_finished(folder: Path) -> bool:
    """Return whether a run has been evaluated after its training."""
    return (folder / "config.json").is_file() and any(
        row["when"] == "after" for row in read_rows(folder, "evaluations")
    )


def train(plan: Plan, arm: Arm, seed: int, folder: Path) -> None:
    """Make a run to its end, from its newest checkpoint where it has begun.

    Beside the folder stands a file that says with which arguments, and how much memory its largest process took.

    Raises:
        UserError: the folder holds a run with other arguments.
        CalledProcessError: the run failed.
    """
    arguments = [
        plan.study.preset,
        *plan.arguments,
        *arm.arguments,
        *("--seed", str(seed), "--out", str(folder)),
    ]
    marker = folder.with_name(folder.name + ".json")
    facts: dict[str, Any] = {"arguments": arguments, "peak_memory_bytes": 0}
    if (folder / "config.json").is_file():
        begun = json.loads(marker.read_text(encoding="utf-8")) if marker.is_file() else {}
        if begun.get("arguments") != arguments:
            raise UserError(f"{folder} holds a run with other arguments: choose another --runs, or remove it.")
        facts, arguments = begun, ["--resume", str(folder)]
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text(json.dumps(facts), encoding="utf-8")
    command = [sys.executable, "-m", "rollcage", "train", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    facts["peak_memory_bytes"] = max(facts["peak_memory_bytes"], usage.ru_maxrss * 1024)  # ru_maxrss: KiB
    marker.write_text(json.dumps(facts), encoding="utf-8")
