"""``rollcage bench calibration``: simulations fitted to recorded runs, beside runs that they were not fitted to."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rollcage.benchmarks.machine import describe
from rollcage.benchmarks.throughput.slow_countdown import ENV_ID
from rollcage.command import CommandParser, positive
from rollcage.errors import UserError
from rollcage.trainer.simulation.calibrate import Calibration, calibrate
from rollcage.trainer.simulation.draws import Draws, Gaussian
from rollcage.trainer.simulation.recorded import Recorded, read_recorded
from rollcage.trainer.simulation.report import calibration_to_json

GOAL = 0.15
"""How far a prediction may be off."""


@dataclass(frozen=True)
class Row:
    """Predictions of one kind of run by another kind.

    Attributes:
        fitted, predicted: what the simulations were fitted to, and what they had to predict, in words.
        num_pairs: pairs of runs.
        measured, simulated: samples per second, medians over the predicted runs and over the predictions.
        ratios: predicted over measured, one a pair, in ascending order.
    """

    fitted: str
    predicted: str
    num_pairs: int
    measured: float
    simulated: float
    ratios: Sequence[float]

    @property
    def of_medians(self) -> float:
        """Predicted over measured, of the medians."""
        return self.simulated / self.measured


def main(argv: Sequence[str]) -> int:
    """``rollcage bench calibration``."""
    parser = CommandParser(
        "rollcage bench calibration",
        "How well does `rollcage simulate --from RUN` predict runs that it has not seen? The simulation is fitted to\n"
        "each run, and predicts the throughput of every other one from how that was asked to be (mode, ratio, slots,\n"
        "batch), never from how it went. Where `bench asynchrony` changed the environment's latency, it is told too.",
        "rollcage bench calibration runs/asynchrony/*\n"
        "rollcage bench calibration runs/asynchrony/* --seeds 10 --output benchmarks/results --json",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, two at least")
    parser.add_argument("--seeds", type=positive, default=5, help="simulations of each prediction (default: 5)")
    parser.add_argument("--output", type=Path, help="folder for calibration.md")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    arguments = parser.parse_args(argv)
    if len(arguments.runs) < 2:
        raise UserError("give two runs at least: one to fit to, another to predict.")
    runs = [read_recorded(run) for run in arguments.runs]
    fits = [calibrate(run.run) for run in runs]
    rows = compare(fits, runs, num_seeds=arguments.seeds, watch=sys.stderr.write)
    page = format_page(rows, fits, command=" ".join(["rollcage bench calibration", *argv]))
    sys.stdout.write(page)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "calibration.md").write_text(page, encoding="utf-8")
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(row) for row in rows]) + "\n")
    return 0


def compare(
    fits: Sequence[Calibration], runs: Sequence[Recorded], *, num_seeds: int, watch: Any = lambda text: None
) -> list[Row]:
    """Let every fit predict every other run, and put together what is of one kind."""
    pairs: dict[tuple[str, str], list[tuple[Recorded, float]]] = {}
    for fit in fits:
        known: dict[str, float] = {}
        for run in runs:
            if run.run == fit.recorded.run or run.env.get("id") != fit.recorded.env.get("id"):
                continue
            key = repr((run.config, run.num_replicas, run.num_slots, run.warmup, run.num_updates, run.env))
            if key not in known:
                known[key] = fit.predict(run, turn_s=_told(fit.recorded, run), num_seeds=num_seeds)
            pairs.setdefault((kind(fit.recorded), kind(run)), []).append((run, known[key] / run.samples_per_s))
        watch(f"fitted to {fit.recorded.run}\n")
    return [
        Row(
            fitted,
            predicted,
            len(found),
            median({run.run: run.samples_per_s for run, _ in found}.values()),
            median(ratio * run.samples_per_s for run, ratio in found),
            sorted(ratio for _, ratio in found),
        )
        for (fitted, predicted), found in sorted(pairs.items())
    ]


def kind(run: Recorded) -> str:
    """Return in words what tells one kind of run from another."""
    config = run.config
    how = "sync" if config.mode == "sync" else f"ratio {config.async_ratio:g}, {config.num_slots} slots"
    more = [f"{run.num_replicas} replicas"] if run.num_replicas > 1 else []
    latency = _latency(run)
    more += [f"latency N({latency.centre:g}, {latency.std:g}) s"] if latency else []
    return ", ".join([how, f"{config.num_groups} x {config.group_size}", *more])


def _latency(run: Recorded) -> Gaussian | None:
    given: Mapping[str, Any] = run.env.get("args", {})
    if run.env.get("id") != ENV_ID:
        return None
    return Gaussian(float(given.get("mean_s", 1.0)), float(given.get("std_s", 1.0)))


def _told(fitted: Recorded, predicted: Recorded) -> Draws | None:
    """Return the latency that a prediction must be told, where it is not that of the run that was fitted to."""
    latency = _latency(predicted)
    return latency if latency != _latency(fitted) else None


def format_page(rows: Sequence[Row], fits: Sequence[Calibration], *, command: str) -> str:
    """Return the comparison, and what was fitted, as a page."""
    ratios = [ratio for row in rows for ratio in row.ratios]
    near = sum(abs(ratio - 1) <= GOAL for ratio in ratios)
    medians = sum(abs(row.of_medians - 1) <= GOAL for row in rows)
    lines = [
        "# Simulated and measured throughput",
        "",
        f"`{command}`; {describe()} when this page was made.",
        "",
        "The simulation of `rollcage simulate --from RUN` is fitted to each run and predicts the others: it is told",
        "how they were asked to be (mode, ratio, slots, batch, latency where that differs), and nothing of how they",
        "went. Rows with the same kind on both sides say how far runs that differ in nothing but their seed and the",
        "machine's mood are from each other: no prediction can be better than that. `of medians` is the median",
        "prediction over the median measurement of a kind.",
        "",
        "| fitted to | predicted | pairs | measured samples/s | predicted | of medians | predicted / measured, pair by "
        f"pair: median | least to most | within {GOAL:.0%} |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        within = sum(abs(ratio - 1) <= GOAL for ratio in row.ratios)
        pairs = f"{median(row.ratios):.2f} | {row.ratios[0]:.2f} to {row.ratios[-1]:.2f} | {within} of {row.num_pairs}"
        lines.append(
            f"| {row.fitted} | {row.predicted} | {row.num_pairs} | {row.measured:.2f} | {row.simulated:.2f} | "
            f"**{row.of_medians:.2f}** | {pairs} |"
        )
    lines += [
        "",
        f"Of {len(rows)} kinds of pairs, {medians} are within {GOAL:.0%} by their medians; of all "
        f"{len(ratios)} pairs, {near}.",
        "",
        "With n requests beside each other a token takes `token_s` + `load_token_s` (n - 1) + `context_token_s` n c, c",
        "tokens of context in the longest of them: attention over a padded batch reads that many keys and values for",
        "each. Slots that are refilled always hold a long context, where a batch that comes to its end holds its long",
        "ones alone: so a token at equal load takes longer in asynchronous runs, and a model without contexts, fitted",
        "to a run in lockstep, is too fast for them. While the learner trains, a token takes `contention` times as",
        "long.",
        "",
        "What the model leaves out: how much of the machine other programs left to each run (its runs of one kind say",
        "how much that is), that the learner is slowed down by the engine in turn, and that requests which come one",
        "by one share no pass that reads their prompts. A run without overlap does not show `contention`: what is",
        "fitted to it takes it to be 1. Where slots are always full and contexts always long, load and contexts",
        "cannot be told apart: they get equal shares, and predictions of other batches from such a run are rough.",
        "",
        "## What was fitted (medians of the runs of a kind)",
        "",
    ]
    told = [(kind(fit.recorded), calibration_to_json(fit)) for fit in fits]
    names = list(told[0][1])
    lines += ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for name in dict.fromkeys(kind for kind, _ in told):
        values = (median(fitted[column] for kind, fitted in told if kind == name) for column in names)
        lines.append(f"| {name} | " + " | ".join(f"{value:.4g}" for value in values) + " |")
    return "\n".join(lines) + "\n"
