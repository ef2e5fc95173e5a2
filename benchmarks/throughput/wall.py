"""The real trainer in wall time: asynchronous against synchronous, where environments take their time."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rollcage.benchmarks.throughput.slow_countdown import ENV_ID
from rollcage.command import CommandParser, natural_float, positive
from rollcage.errors import RollcageError
from rollcage.monitor.report import shares
from rollcage.monitor.run_folder import read_metrics
from rollcage.monitor.store import RunReader

WARM_UP = 1
"""Updates before the clock starts: the first batch of an asynchronous run is made by an engine that nobody disturbs."""


def main(argv: Sequence[str]) -> int:
    """``rollcage bench asynchrony``."""
    parser = CommandParser(
        "rollcage bench asynchrony",
        "Train the small policy on Countdown with slow environments, in turns: synchronously (all episodes of a batch\n"
        "wait for each other after every turn and before training) and asynchronously; samples trained per second.\n"
        "Nothing else should run meanwhile.",
        "rollcage bench asynchrony\n"
        "rollcage bench asynchrony --repetitions 5 --output benchmarks/results\n"
        "rollcage bench asynchrony --latency 2 --spread 2 --async-ratio 2",
    )
    parser.add_argument("--repetitions", type=positive, default=5, help="runs of each kind (default: 5)")
    parser.add_argument("--updates", type=positive, default=5, help="measured updates of each run (default: 5)")
    parser.add_argument("--groups", type=positive, default=8, help="tasks of a batch, of 8 rollouts each (default: 8)")
    parser.add_argument("--attempts", type=positive, default=3, help="turns of an episode at most (default: 3)")
    parser.add_argument("--latency", type=natural_float, default=1.0, help="mean seconds of an env step (default: 1)")
    parser.add_argument("--spread", type=natural_float, default=1.0, help="their standard deviation (default: 1)")
    parser.add_argument("--async-ratio", type=natural_float, default=1.0, help="of the asynchronous runs (default: 1)")
    parser.add_argument("--slots", type=positive, default=128, help="episodes at once, asynchronous (default: 128)")
    parser.add_argument("--runs", type=Path, default=Path("runs/asynchrony"), help="where runs go (%(default)s)")
    parser.add_argument("--output", type=Path, help="folder for asynchrony.md and asynchrony.json")
    arguments = parser.parse_args(argv)
    results: dict[str, list[dict[str, float]]] = {"sync": [], "async": []}
    for repetition in range(arguments.repetitions):
        for mode, measured in results.items():
            folder = arguments.runs / f"{mode}-{repetition}"
            shutil.rmtree(folder, ignore_errors=True)
            _train(arguments, mode, repetition, folder)
            measured.append(measure(folder))
            sys.stderr.write(f"{mode} {repetition}: {measured[-1]['samples_per_s']:.2f} samples a second\n")
    report = format_report(list(argv), results, vars(arguments))
    sys.stdout.write(report)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "asynchrony.md").write_text(report, encoding="utf-8")
        (arguments.output / "asynchrony.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


def _train(arguments: Any, mode: str, seed: int, folder: Path) -> None:
    size = 8 * arguments.groups
    chosen = {
        "sync": ["--rollout.mode", "sync", "--rollout.async-ratio", "0", "--rollout.num-slots", str(size)],
        "async": ["--rollout.async-ratio", str(arguments.async_ratio), "--rollout.num-slots", str(arguments.slots)],
    }[mode]
    command = [
        *(sys.executable, "-m", "rollcage", "train", "countdown-small", "--env.id", ENV_ID),
        *("--env.args", "mean_s", str(arguments.latency), "std_s", str(arguments.spread)),
        *("max_attempts", str(arguments.attempts)),
        *("--rollout.num-groups", str(arguments.groups), "--rollout.group-size", "8", *chosen),
        *("--num-updates", str(WARM_UP + arguments.updates), "--max-train-s", "1e9", "--checkpoint-every", "1000"),
        *("--engine.max-context-tokens", str(320 * arguments.attempts), "--eval.num-tasks", "0"),
        *("--seed", str(seed), "--out", str(folder)),
    ]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RollcageError(f"the {mode} run ended with {done.returncode}: {done.stderr[-1000:]}")


def measure(folder: Path) -> dict[str, float]:
    """Return how fast a run trained after its warm-up, and what it trained on."""
    rows = read_metrics(folder)
    with RunReader(folder) as reader:
        time = shares(reader)
    begin_s, end_s = rows[WARM_UP - 1]["time/elapsed_s"], rows[-1]["time/elapsed_s"]
    measured = rows[WARM_UP:]
    num_samples = sum(row["rollout/num_samples"] for row in measured)
    return {
        "samples_per_s": num_samples / (end_s - begin_s),
        "tokens_per_s": sum(row["rollout/num_samples"] * row["rollout/sampled_tokens"] for row in measured)
        / (end_s - begin_s),
        "turns": sum(row["rollout/turns"] for row in measured) / len(measured),
        "staleness": sum(row["rollout/staleness"] for row in measured) / len(measured),
        "train_share": time["train"],
        "failed": rows[-1]["account/failed"],
    }


def format_report(
    argv: Sequence[str], results: Mapping[str, Sequence[Mapping[str, float]]], chosen: Mapping[str, Any]
) -> str:
    """Return the results as a page: medians, their range, and the ratio with the range of its pairs."""
    lines = [
        "# Asynchronous against synchronous, in wall time",
        "",
        f"`{' '.join(['rollcage bench asynchrony', *argv])}` on {os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}. The small policy on Countdown with up to {chosen['attempts']} attempts; each "
        f"reset and verdict takes max(0, N({chosen['latency']:g} s, {chosen['spread']:g} s)); batches of "
        f"{chosen['groups']} tasks x 8 rollouts; real engine and DeepSpeed learner. Runs in turns, "
        f"{chosen['updates']} measured updates each after {WARM_UP} of warm-up. Synchronous: all episodes of a batch "
        "begin together, wait for each other before and after every step of their environments, and training waits "
        "for all.",
        "",
        "| | samples/s (range) | tokens/s | turns | staleness | learner trains | failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for mode, runs in results.items():
        speeds = [run["samples_per_s"] for run in runs]
        middle = {name: median(run[name] for run in runs) for name in runs[0]}
        cells = (
            mode,
            f"{median(speeds):.2f} ({min(speeds):.2f} to {max(speeds):.2f})",
            f"{middle['tokens_per_s']:.0f}",
            f"{middle['turns']:.2f}",
            f"{middle['staleness']:.2f}",
            f"{middle['train_share']:.0%}",
            f"{middle['failed']:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    pairs = zip(results["sync"], results["async"], strict=True)
    ratios = [after["samples_per_s"] / before["samples_per_s"] for before, after in pairs]
    lines += [
        "",
        f"**Asynchronous is {median(ratios):.2f} times as fast** (median of {len(ratios)} pairs, "
        f"{min(ratios):.2f} to {max(ratios):.2f}).",
    ]
    return "\n".join(lines) + "\n"
