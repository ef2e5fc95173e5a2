"""The command ``bench throughput``: the figures, as tables, as one line of JSON, and as files that are kept."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rollcage.benchmarks.machine import describe
from rollcage.benchmarks.throughput.figures import FIGURES, Effort, Figure
from rollcage.benchmarks.throughput.plots import plot
from rollcage.benchmarks.throughput.scaling import SCALING
from rollcage.command import CommandParser
from rollcage.errors import UserError, did_you_mean

_ALL = {**FIGURES, **SCALING}
# the longest first, so that the processes end together
_ORDER = ("scaling_8x", "rlvr_end_to_end", "agentic_end_to_end", "env_async", "queue_scheduling", "redundancy")


def main(argv: Sequence[str]) -> int:
    """``rollcage bench throughput``: every figure that is asked for, each computed now."""
    parser = CommandParser(
        "rollcage bench throughput",
        "Throughput of asynchronous against synchronous training, on the settings of the ROLL Flash paper as far as\n"
        "they are known, in virtual time: the trainer's own loop, scheduler, buffer and router over simulated\n"
        "engines, environments and learner. All parameters: benchmarks/throughput/settings.py.",
        "rollcage bench throughput --virtual\n"
        "rollcage bench throughput --virtual --json\n"
        "rollcage bench throughput --virtual --only redundancy env_async\n"
        "rollcage bench throughput --virtual --full --output benchmarks/results",
    )
    parser.add_argument("--virtual", action="store_true", help="in virtual time (no GPU, no model)")
    parser.add_argument("--only", nargs="+", metavar="FIGURE", default=list(_ALL), help=", ".join(_ALL))
    parser.add_argument("--full", action="store_true", help="more batches, larger grids, 10,000 workers (minutes)")
    parser.add_argument("--json", action="store_true", help="end with one JSON line: the ratios")
    parser.add_argument("--output", type=Path, help="folder for throughput.md, throughput.json and throughput.png")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    arguments = parser.parse_args(argv)
    if not arguments.virtual:
        raise UserError("say what to measure: --virtual  See: rollcage bench throughput --help")
    for name in arguments.only:
        if name not in _ALL:
            raise UserError(f"no figure {name!r} (there are: {', '.join(_ALL)}).{did_you_mean(name, _ALL)}")
    effort = Effort(updates=8 if arguments.full else 4, full=arguments.full)
    start_s = time.monotonic()
    figures = compute(arguments.only, effort, num_processes=max(1, arguments.jobs))
    seconds = time.monotonic() - start_s
    page = format_page(figures, command=" ".join(["rollcage bench throughput", *argv]), seconds=seconds)
    sys.stdout.write(page)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "throughput.md").write_text(page + "\n![throughput](throughput.png)\n", encoding="utf-8")
        rows = [asdict(figure) for figure in figures.values()]
        (arguments.output / "throughput.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        plot(arguments.output / "throughput.png", figures)
    if arguments.json:
        sys.stdout.write(json.dumps(summary(figures) | {"seconds": round(seconds, 1)}) + "\n")
    return 0


def compute(names: Sequence[str], effort: Effort, *, num_processes: int) -> dict[str, Figure]:
    """Return the figures, in the order of ``names``; each is computed in one of so many processes."""
    order = sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else len(_ORDER))
    if num_processes == 1:
        done = {name: _figure(name, effort) for name in order}
    else:
        with ProcessPoolExecutor(min(num_processes, len(names)), mp_context=get_context("spawn")) as pool:
            futures = {name: pool.submit(_figure, name, effort) for name in order}
            done = {name: future.result() for name, future in futures.items()}
    return {name: done[name] for name in names}


def _figure(name: str, effort: Effort) -> Figure:
    gc.set_threshold(200_000)  # tens of thousands of live episodes are no garbage: looking for it takes a fifth of all
    return _ALL[name](effort)


def summary(figures: Mapping[str, Figure]) -> dict[str, Any]:
    """Return the ratios, whether each reaches its goal, and the rows nearest to (or beyond) the bound."""
    of_bound = [
        row["of_bound"]
        for figure in figures.values()
        for row in figure.rows
        if "of_bound" in row and row.get("mode") != "sync"
    ]
    costs = {
        str(row["in_flight"]): round(row["cpu_us_per_episode"], 1)
        for figure in figures.values()
        for row in figure.rows
        if "in_flight" in row
    }
    result: dict[str, Any] = {name: round(figure.value, 3) for name, figure in figures.items()}
    result |= {name: round(ratio, 3) for figure in figures.values() for name, ratio in figure.more.items()}
    goals = {name: figure.value >= figure.goal for name, figure in figures.items() if figure.goal is not None}
    result["reaches_goal"] = goals
    if of_bound:
        result["of_bound_worst"] = round(max(of_bound), 3)
    if costs:
        result["orchestration_us_per_episode"] = costs
    return result


def format_page(figures: Mapping[str, Figure], *, command: str, seconds: float) -> str:
    """Return the figures as a page."""
    lines = [
        "# Throughput in virtual time",
        "",
        f"`{command}` in {seconds:.0f} s; {describe()}.",
        "",
        "The trainer's own loop, scheduler, buffer, router and conversations run; engines, environments and",
        "learner are models of the time that they take (`benchmarks/throughput/settings.py` has every parameter,",
        "and says which of them the paper gives). `sync` is the baseline: whole batches in turn lockstep, then",
        "training. The same seeds draw the same lengths, latencies and rewards on both sides. `of_bound` is the",
        "update's time over the bound (N / K) (mu_gen + mu_train) + L_gen / (alpha + 1); `workers` are slots;",
        "L_gen is the longest episode of the whole run.",
        "",
        "| figure | times as fast | goal | setting | the paper |",
        "|---|---|---|---|---|",
    ]
    for figure in figures.values():
        goal = "" if figure.goal is None else f"{figure.goal:g} ({'met' if figure.value >= figure.goal else 'not met'})"
        lines.append(f"| {figure.title} | **{figure.value:.2f}** | {goal} | {figure.setting} | {figure.paper} |")
    for figure in figures.values():
        names = list(dict.fromkeys(name for row in figure.rows for name in row))
        lines += ["", f"## {figure.title}", "", "| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
        lines += ["| " + " | ".join(_cell(row.get(name, "")) for name in names) + " |" for row in figure.rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
