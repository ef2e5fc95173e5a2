"""``rollcage bench alfworld``: resets and steps of rollcage/ALFWorld-v0 beside alfworld's own, on the same games."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollcage.benchmarks.envs.alfworld_play import ENV_ID, compare, memory, stock_bytes
from rollcage.benchmarks.envs.footprint import (
    DEADLINE_S,
    in_own_process,
    inline_footprint,
    process_bytes,
    sandbox_bytes,
)
from rollcage.benchmarks.machine import describe
from rollcage.command import CommandParser, natural, positive
from rollcage.envs import make
from rollcage.envs.alfworld.games import DATASETS, find_source
from rollcage.envs.placements import EnvConfig, EnvHandle, Placement, SandboxPlacement, make_placement
from rollcage.envs.tasks import sample_indices
from rollcage.errors import require
from rollcage.sandbox.types import SandboxSpec

if TYPE_CHECKING:
    from rollcage.sandbox.base import Sandboxes

IMAGE = "rollcage-env-alfworld"
NUM_CONCURRENT = 4


def main(argv: Sequence[str]) -> int:
    """Measure; the last line on stdout is one JSON object. Exit code 1 where a transcript differs."""
    parser = CommandParser(
        "rollcage bench alfworld",
        "Play the same games with the same actions in alfworld's own environment and in ours, in turns, and compare\n"
        "times, memory and transcripts. Our translations go to a folder of their own, so that first resets are first.",
        "rollcage bench alfworld\nrollcage bench alfworld --sandbox --split train --output benchmarks/results\n"
        "rollcage bench alfworld --dataset sample --games 6 --resets 1000",
    )
    parser.add_argument("--dataset", choices=DATASETS, default="official", help="which games (default: official)")
    parser.add_argument("--split", default="valid_unseen", help="of the games (default: valid_unseen)")
    parser.add_argument("--games", type=positive, default=20, help="how many (default: 20)")
    parser.add_argument("--steps", type=positive, default=20, help="in each game (default: 20)")
    parser.add_argument("--sandbox", action="store_true", help="in containers too: takes Docker, builds an image once")
    parser.add_argument("--resets", type=natural, default=10_000, help="for the memory they take (default: 10000)")
    parser.add_argument("--output", type=Path, help="folder for alfworld.md and alfworld.json")
    arguments = parser.parse_args(argv)
    load_before = os.getloadavg()[0]
    before = os.environ.get("ROLLCAGE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ROLLCAGE_CACHE"] = folder
        try:
            result = asyncio.run(
                measure(arguments.dataset, arguments.split, arguments.games, arguments.steps, arguments.sandbox)
            )
            result["memory"] = memory(arguments.dataset, arguments.split, arguments.games, arguments.resets)
        finally:
            os.environ.pop("ROLLCAGE_CACHE")
            if before is not None:
                os.environ["ROLLCAGE_CACHE"] = before
    result["how"] = {
        "command": f"rollcage bench alfworld {' '.join(argv)}".strip(),
        "games": arguments.games,
        "steps": arguments.steps,
        "machine": describe(),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "versions": {name: metadata.version(name) for name in ("alfworld", "textworld", "fast-downward-textworld")},
    }
    text = report(result)
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "alfworld.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (arguments.output / "alfworld.md").write_text(text, encoding="utf-8")
    sys.stderr.write(text)
    sys.stdout.write(json.dumps(result) + "\n")
    return 1 if result["different"] else 0


async def measure(dataset: str, split: str, num_games: int, num_steps: int, sandbox: bool) -> dict[str, Any]:
    """Return times of resets and steps (seconds, one for each game; a step's is the median), what differed, and memory.

    Args:
        dataset, split, num_games, num_steps: what is played.
        sandbox: in containers too.
    """
    kwargs = {"dataset": dataset, "split": split, "instructions": False, "max_turns": None}
    async with AsyncExitStack() as stack:
        places: dict[str, EnvHandle] = {}
        sandboxes, image = (await open_sandboxes(dataset, stack)) if sandbox else (None, "")
        config = EnvConfig(ENV_ID, kwargs)
        placements: dict[str, Placement] = {"in a process": make_placement("process", config)}
        if sandboxes is not None:
            spec = SandboxSpec(image=image)
            placements["in a sandbox"] = SandboxPlacement(config, spec=spec, sandboxes=sandboxes)
        for name, placement in placements.items():
            stack.push_async_callback(placement.close)
            places[name] = await placement.acquire(deadline_s=DEADLINE_S)
        result = await compare(kwargs, num_games, num_steps, places)
        for placement in placements.values():
            await placement.close()
        result["footprint"] = await footprint(kwargs, sandboxes, image)
        return result


async def open_sandboxes(dataset: str, stack: AsyncExitStack) -> tuple[Sandboxes, str]:
    """Return a manager of our own, and an image with ALFWorld in it, and with its games."""
    require("aiodocker", "sandbox")
    from rollcage.sandbox.images.env import build_env
    from rollcage.sandbox.opening import default_endpoint, open_manager

    requirements = Path(str(resources.files("rollcage.envs.alfworld").joinpath("requirements.txt")))
    folder = getattr(find_source(dataset), "folder", None)
    data = [] if folder is None else [Path(folder)]
    endpoint = default_endpoint()
    image = await build_env(endpoint, requirements=[requirements], data=data, image=IMAGE, progress=_progress)
    state = stack.enter_context(tempfile.TemporaryDirectory())
    return await stack.enter_async_context(await open_manager(Path(state) / "sandboxes", [endpoint])), image


def _progress(line: str) -> None:
    sys.stderr.write(f"{line}\n")


async def footprint(kwargs: Mapping[str, Any], sandboxes: Sandboxes | None, image: str) -> dict[str, int]:
    """Return how many bytes one more environment takes in each place, and one process with alfworld's own."""
    tasks = make(ENV_ID, **kwargs).unwrapped.tasks  # type: ignore[attr-defined]
    split = str(kwargs["split"])
    task_ids = [tasks.task(split, index).id for index in sample_indices(tasks, split, NUM_CONCURRENT, seed=1)]
    found = {
        "alfworld's own, a process each": in_own_process(partial(stock_bytes, dict(kwargs), task_ids[0])),
        "inline": inline_footprint(ENV_ID, kwargs, task_ids),
        "in a process": await process_bytes(ENV_ID, kwargs, task_ids),
    }
    if sandboxes is not None:
        found["in a sandbox"] = await sandbox_bytes(sandboxes, image, ENV_ID, kwargs, task_ids)
    return found


_ROWS = (
    ("first reset", "alfworld reset"),
    ("reset from disk", "alfworld reset"),
    ("reset from memory", "alfworld reset"),
    ("reset in a process", "alfworld reset"),
    ("reset in a sandbox", "alfworld reset"),
    ("ours step", "alfworld step"),
    ("in a process step", "alfworld step"),
    ("in a sandbox step", "alfworld step"),
)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    how, seconds = result["how"], result["seconds"]
    cpu = how["machine"].partition("; load")[0]
    versions = ", ".join(f"{name} {number}" for name, number in how["versions"].items())
    lines = [
        "# ALFWorld: speed beside alfworld's own environment",
        "",
        f"How: `{how['command']}`: {how['games']} games, up to {how['steps']} actions each (expert's, random and wrong "
        f"ones), the same in all, one after the other. {versions}. {cpu}; load {how['load_before']:.2f} before and "
        f"{how['load_after']:.2f} after (this command's own part is 1). Medians over the games; the last column is the "
        "median of the games' ratios.",
        "",
        "| | ms | a second and core | alfworld's, ms | times as fast |",
        "| --- | --: | --: | --: | --: |",
    ]
    for ours, theirs in _ROWS:
        if ours not in seconds:
            continue
        ratio = statistics.median(b / a for a, b in zip(seconds[ours], seconds[theirs], strict=True))
        own, stock = (statistics.median(seconds[name]) * 1e3 for name in (ours, theirs))
        figures = " | ".join(_figure(value) for value in (own, 1e3 / own, stock, ratio))
        lines.append(f"| {ours.removeprefix('ours ')} | {figures} |")
    grown = ", ".join(f"{value / 2**20:.0f} MiB {name}" for name, value in result["memory"].items())
    different = "; ".join(result["different"]) or "none"
    taken = ", ".join(f"{name} {value / 2**20:.3g} MiB" for name, value in result["footprint"].items())
    lines += [
        "",
        f"Transcripts that differ: {different}. Resident memory of the process that makes these resets: {grown}.",
        "",
        f"Memory of one more environment in an episode, where {NUM_CONCURRENT} run at once: {taken}. (A container's is "
        "what its control group counts, the files that it has read included.)",
        "",
    ]
    return "\n".join(lines)
