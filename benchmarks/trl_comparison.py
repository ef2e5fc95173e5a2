"""``rollcage bench trl``: our trainer and TRL's GRPOTrainer on the same work, in turns; trajectories per second."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rollcage.benchmarks.machine import describe
from rollcage.benchmarks.trl_trainer import Setting, Work, as_argument
from rollcage.command import CommandParser, natural_float, positive
from rollcage.errors import RollcageError, require
from rollcage.monitor.run_folder import read_metrics

_PROMPT_TOKENS = 160
_LIMIT_S = 300.0
"""Seconds that one run may take."""


def main(argv: Sequence[str]) -> int:
    """Run both in turns and print the table."""
    parser = CommandParser(
        "rollcage bench trl",
        "Train the small policy on Countdown with this trainer and with TRL's GRPOTrainer (extra trl), in turns:\n"
        "trajectories trained on per second after a warm-up, each in a process of its own. Same policy, tasks,\n"
        "prompts, group size, token limit, loss and learning rate. Nothing else should run meanwhile. --search tries\n"
        "TRL's settings, each once, and ends.",
        "rollcage bench trl\n"
        "rollcage bench trl --repetitions 5 --output benchmarks/results\n"
        "rollcage bench trl --search",
    )
    parser.add_argument("--repetitions", type=positive, default=5, help="runs of each (default: 5)")
    parser.add_argument("--updates", type=positive, default=6, help="measured updates of each run (default: 6)")
    parser.add_argument("--groups", type=positive, default=32, help="tasks of a batch (default: 32)")
    parser.add_argument("--tokens", type=positive, default=40, help="most tokens of a rollout (default: 40)")
    parser.add_argument("--async-ratio", type=natural_float, default=1.0, help="of our runs (default: 1)")
    parser.add_argument("--micro-batch", type=positive, default=_BEST.micro_batch, help="TRL's (default: %(default)s)")
    parser.add_argument("--bf16", action="store_true", help="let TRL train in bf16 too")
    parser.add_argument("--search", action="store_true", help="try TRL's settings instead")
    parser.add_argument("--runs", type=Path, default=Path("runs/trl"), help="where our runs go (%(default)s)")
    parser.add_argument("--output", type=Path, help="folder for trl.md and trl.json")
    arguments = parser.parse_args(argv)
    require("trl", "trl")
    work = Work(groups=arguments.groups, tokens=arguments.tokens, updates=arguments.updates)
    if arguments.search:
        for setting in _SETTINGS:
            result = _run_trl(work, setting)
            sys.stdout.write(f"{asdict(setting)}: {result['trajectories_per_s']:.1f} trajectories/s\n")
        return 0
    setting = Setting(micro_batch=arguments.micro_batch, bf16=arguments.bf16)
    results: dict[str, list[dict[str, Any]]] = {"trl": [], "rollcage": []}
    start_s = time.monotonic()
    for repetition in range(arguments.repetitions):
        now = Work(**(asdict(work) | {"seed": repetition}))
        results["trl"].append(_run_trl(now, setting))
        results["rollcage"].append(_run_ours(now, arguments.async_ratio, arguments.runs / str(repetition)))
        for name, runs in results.items():
            sys.stderr.write(f"{name} {repetition}: {runs[-1]['trajectories_per_s']:.1f} trajectories a second\n")
    command = " ".join(["rollcage bench trl", *argv])
    page = format_page(command, results, work, setting, arguments.async_ratio, time.monotonic() - start_s)
    sys.stdout.write(page)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "trl.md").write_text(page, encoding="utf-8")
        (arguments.output / "trl.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


_BEST = Setting()
"""The fastest of `_SETTINGS` where this was written: batched ``generate``, the whole batch in one pass."""
_SETTINGS = (
    *(Setting(micro_batch=size) for size in (256, 128, 64, 32)),
    Setting(bf16=True),
    Setting(threads=1),
    Setting(continuous=True),
)


def _run_trl(work: Work, setting: Setting) -> dict[str, Any]:
    command = [sys.executable, "-m", "rollcage.benchmarks.trl_trainer", as_argument(work, setting)]
    environment = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    lines = _run(command, environment).strip().splitlines()
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def _run_ours(work: Work, async_ratio: float, folder: Path) -> dict[str, Any]:
    shutil.rmtree(folder, ignore_errors=True)
    command = [
        *(sys.executable, "-m", "rollcage", "train", "countdown-small", "--out", str(folder)),
        *("--rollout.num-groups", str(work.groups), "--rollout.group-size", str(work.group_size)),
        *("--rollout.async-ratio", str(async_ratio), "--sampling.max-new-tokens", str(work.tokens)),
        *("--engine.max-context-tokens", str(_PROMPT_TOKENS + work.tokens), "--learner.max-length", str(work.tokens)),
        *("--learner.lr", str(work.lr), "--learner.warmup-steps", "0", "--learner.no-mask-cut"),
        *("--num-updates", str(work.warm_up + work.updates), "--max-train-s", "1e9", "--checkpoint-every", "1000000"),
        *("--eval.num-tasks", "0", "--seed", str(work.seed)),
    ]
    _run(command, {"CUDA_VISIBLE_DEVICES": ""})
    rows = read_metrics(folder)
    measured = rows[work.warm_up :]
    seconds = measured[-1]["time/elapsed_s"] - rows[work.warm_up - 1]["time/elapsed_s"]
    return {
        "trajectories_per_s": sum(row["rollout/num_samples"] for row in measured) / seconds,
        "reward": fmean(row["rollout/reward"] for row in measured),
        "wait_share": sum(row["time/wait_s"] for row in measured) / seconds,
        "train_share": sum(row["time/train_s"] for row in measured) / seconds,
        "tokens": fmean(row["rollout/sampled_tokens"] for row in measured),
    }


def _run(command: Sequence[str], environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, env={**os.environ, **environment}
        )
    except subprocess.TimeoutExpired:
        raise RollcageError(f"{' '.join(command[2:5])} took longer than {_LIMIT_S:g} s") from None
    if done.returncode:
        raise RollcageError(f"{' '.join(command[2:5])} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def format_page(
    command: str,
    results: Mapping[str, Sequence[Mapping[str, Any]]],
    work: Work,
    setting: Setting,
    async_ratio: float,
    seconds: float,
) -> str:
    """Return the results as a page: medians, their range, and the ratio with the range of its pairs."""
    version = results["trl"][0]["version"]
    lines = [
        "# Beside TRL's GRPOTrainer, on the CPU",
        "",
        f"`{command}` in {seconds:.0f} s; {describe()}.",
        "",
        f"The small policy on Countdown, {work.groups} tasks x {work.group_size} rollouts of at most {work.tokens} "
        "tokens in a batch, one gradient step each, Dr. GRPO's advantages and loss without a KL term, learning rate "
        f"{work.lr:g}; {work.updates} measured updates after {work.warm_up} of warm-up, runs in turns, the same tasks "
        f"and prompts. TRL {version}: batched `generate`, all rollouts of a batch at once, micro-batches of "
        f"{setting.micro_batch}, {'bf16' if setting.bf16 else 'float32'}, all cores (`--search` compares settings). "
        "Ours: the preset countdown-small, its engine and learner on a core each, asynchronous ratio "
        f"{async_ratio:g}; its number formats are those that the machine is fast at.",
        "",
        "| | trajectories/s (range) | reward | |",
        "|---|---|---|---|",
    ]
    shares = {"trl": ("generation_share", "of the time generates"), "rollcage": ("train_share", "of the time trains")}
    for name, runs in results.items():
        speeds = [run["trajectories_per_s"] for run in runs]
        share, says = shares[name]
        lines.append(
            f"| {name} | {median(speeds):.1f} ({min(speeds):.1f} to {max(speeds):.1f}) | "
            f"{fmean(run['reward'] for run in runs):.3f} | {median(run[share] for run in runs):.0%} {says} |"
        )
    pairs = zip(results["rollcage"], results["trl"], strict=True)
    ratios = [ours["trajectories_per_s"] / theirs["trajectories_per_s"] for ours, theirs in pairs]
    lines += [
        "",
        f"**{median(ratios):.2f} times as many trajectories a second** (median of {len(ratios)} pairs, "
        f"{min(ratios):.2f} to {max(ratios):.2f}).",
    ]
    return "\n".join(lines) + "\n"
