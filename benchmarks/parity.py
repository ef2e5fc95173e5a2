"""Learning parity: what training on older samples costs, loss by loss, in runs that differ in nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rollcage.benchmarks.parity_report import (
    Cell,
    Outcome,
    Plan,
    differences,
    format_report,
    half_width,
    read_outcome,
    write_report,
)
from rollcage.command import CommandParser, natural, natural_float, positive
from rollcage.errors import UserError, require
from rollcage.monitor.run_folder import read_rows


def main(argv: Sequence[str]) -> int:
    """``rollcage bench parity``: train every cell that is missing, and report on all that are there."""
    parser = CommandParser(
        "rollcage bench parity",
        "Train every loss at every asynchronous ratio with paired seeds; reports final success on held-out tasks, its\n"
        "difference from the synchronous run of the same seed, and the time to equal success. Seeds are added until\n"
        "the differences are known well enough. Call again to go on after a kill. The report grows with every run.",
        "rollcage bench parity --output benchmarks/results        # 15 runs a seed, minutes each\n"
        "rollcage bench parity --losses tis topr --alphas 0 2 --max-seeds 3\n"
        "rollcage bench parity --at-bound --runs runs/parity-at-bound\n"
        "rollcage bench parity --report --output benchmarks/results",
    )
    parser.add_argument("--losses", nargs="+", default=["grpo", "decoupled_ppo", "topr", "tis", "cispo"])
    parser.add_argument("--alphas", type=natural_float, nargs="+", default=[0, 2, 8], help="(default: 0 2 8)")
    parser.add_argument("--settle", type=natural_float, nargs="+", default=[2], help="see --half-width (default: 2)")
    parser.add_argument("--min-seeds", type=positive, default=3, help="seeds of every cell (default: 3)")
    parser.add_argument("--max-seeds", type=positive, default=10, help="seeds of any cell (default: 10)")
    parser.add_argument(
        "--half-width",
        type=natural_float,
        default=2.0,
        metavar="POINTS",
        help="add seeds until the 95 %% interval of the difference at --settle is this narrow (default: 2)",
    )
    parser.add_argument("--num-updates", type=positive, default=40, help="of each run (default: 40)")
    parser.add_argument("--num-tasks", type=natural, default=2048, help="of each evaluation (default: 2048)")
    parser.add_argument("--preset", default="countdown-small", help="preset of rollcage train (default: %(default)s)")
    parser.add_argument("--override", action="append", default=[], metavar="--FIELD=VALUE", help="of the preset")
    parser.add_argument(
        "--at-bound",
        action="store_true",
        help="train on samples as old as the ratio allows, also where rollout is too slow to run that far ahead",
    )
    parser.add_argument("--report", action="store_true", help="start no run: report on those that are there")
    parser.add_argument("--runs", type=Path, default=Path("runs/parity"), help="where the runs go (%(default)s)")
    parser.add_argument("--output", type=Path, help="folder for parity.md, parity.json and parity.png")
    arguments = parser.parse_args(argv)
    require("matplotlib", "train").use("Agg")
    plan = make_plan(
        losses=arguments.losses,
        alphas=arguments.alphas,
        settle=arguments.settle,
        seeds=(arguments.min_seeds, arguments.max_seeds),
        half_width=arguments.half_width,
        preset=arguments.preset,
        arguments=[
            f"--num-updates={arguments.num_updates}",
            "--max-train-s=1e9",  # equal numbers of updates, however long they take
            f"--eval.num-tasks={arguments.num_tasks}",
            "--eval.dataset=",
            *(["--rollout.hold-back"] if arguments.at_bound else []),
            *arguments.override,
        ],
    )
    outcomes: list[Outcome] = []
    for seed in range(plan.max_seeds):
        for cell in wanted(plan, seed, outcomes):
            folder = cell.folder(arguments.runs)
            if not is_finished(folder):
                if arguments.report:
                    continue
                sys.stderr.write(f"parity: {cell.loss}, alpha {cell.alpha:g}, seed {cell.seed}: {folder}\n")
                train(cell, plan, folder)
            outcomes.append(read_outcome(cell, folder))
            if arguments.output and not arguments.report:
                write_report(arguments.output, plan, argv, outcomes)
    if arguments.output:
        write_report(arguments.output, plan, argv, outcomes)
    sys.stdout.write(format_report(plan, argv, outcomes))
    return 0


def make_plan(
    *,
    losses: Sequence[str],
    alphas: Sequence[float],
    settle: Sequence[float],
    seeds: tuple[int, int],
    half_width: float,
    preset: str,
    arguments: Sequence[str],
) -> Plan:
    """Put a plan together.

    Raises:
        UserError: there is no synchronous run among the ratios, or the numbers of seeds contradict each other.
    """
    if 0 not in alphas:
        raise UserError("--alphas needs 0, the synchronous run: the others are compared with it.")
    if seeds[0] > seeds[1]:
        raise UserError(f"--min-seeds {seeds[0]} is above --max-seeds {seeds[1]}: set one of them.")
    judged = tuple(alpha for alpha in settle if alpha in alphas and alpha)
    return Plan(tuple(losses), tuple(sorted(set(alphas))), judged, *seeds, half_width, preset, tuple(arguments))


def wanted(plan: Plan, seed: int, outcomes: Sequence[Outcome]) -> list[Cell]:
    """Return the runs of one more seed: all of them at first, then those of differences that are not known yet."""
    if seed < plan.min_seeds:
        return [Cell(loss, alpha, seed) for loss in plan.losses for alpha in plan.alphas]
    cells = []
    for loss in plan.losses:
        open_alphas = []
        for alpha in plan.settle:
            points = differences(outcomes, loss, alpha)
            if not points or not half_width(points) <= plan.half_width:  # NaN of a single seed counts as wide
                open_alphas.append(alpha)
        if open_alphas:
            cells += [Cell(loss, alpha, seed) for alpha in (0, *open_alphas)]
    return cells


def is_finished(folder: Path) -> bool:
    """Return whether a run has been evaluated after its training."""
    return (folder / "config.json").is_file() and any(
        row["when"] == "after" for row in read_rows(folder, "evaluations")
    )


def train(cell: Cell, plan: Plan, folder: Path) -> None:
    """Run a cell to its end, from its newest checkpoint where it has begun.

    Raises:
        UserError: the folder holds a run with other arguments.
    """
    arguments = cell.arguments(plan, folder)
    marker = folder.with_name(folder.name + ".json")
    if (folder / "config.json").is_file():
        begun = json.loads(marker.read_text(encoding="utf-8")) if marker.is_file() else None
        if begun != arguments:
            raise UserError(f"{folder} holds a run with other arguments: choose another --runs, or remove it.")
        arguments = ["--resume", str(folder)]
    else:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_text(json.dumps(arguments), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "rollcage", "train", *arguments], check=True, stdout=subprocess.DEVNULL)
