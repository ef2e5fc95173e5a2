"""``rollcage bench alfworld``: resets and steps of rollcage/ALFWorld-v0 beside alfworld's own, on the same games."""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from rollcage.command import CommandParser, natural, positive
from rollcage.envs import make
from rollcage.envs.alfworld.env import ALFWorldEnv
from rollcage.envs.alfworld.games import DATASETS, open_game
from rollcage.envs.alfworld.source import PLACEHOLDER, GameText
from rollcage.envs.placements import EnvConfig, make_placement
from rollcage.envs.tasks import sample_indices
from rollcage.errors import require

ENV_ID = "rollcage/ALFWorld-v0"
WRONG = ("go to the moon", "Look", " look ", "", "take everything", "put mug 1 in/on desk 1")
DEADLINE_S = 60.0


class Said(NamedTuple):
    """What an environment said to one action, or at a reset."""

    observation: str
    admissible: list[str]
    won: bool


class Stock:
    """alfworld's own way to play a game: TextWorld's environment, with alfworld's names."""

    def __init__(self) -> None:
        textworld = require("textworld", "alfworld")
        environment = require("textworld.envs.pddl", "alfworld").PddlEnv
        names = require("alfworld.agents.environment.alfred_tw_env", "alfworld").AlfredDemangler
        self._env = names(environment(textworld.EnvInfos(won=True, admissible_commands=True)))

    def reset(self, text: GameText) -> Said:
        """Start a game, as its own Gym environment does at every reset: load it and reset it."""
        game = {
            "pddl_domain": text.domain,
            "pddl_problem": text.problem,
            "grammar": text.grammar if text.goal is None else text.grammar.replace(PLACEHOLDER, text.goal),
        }
        self._env.load(game)
        return self._said(self._env.reset())

    def step(self, command: str) -> Said:
        """Take one command."""
        return self._said(self._env.step(command)[0])

    def _said(self, state: Mapping[str, Any]) -> Said:
        return Said(state["feedback"], state["admissible_commands"], bool(state["won"]))


def choose_action(rng: random.Random, said: Said, plan: list[str]) -> str:
    """Return the expert's next command (half of the time), a random admissible one, or a wrong one."""
    kind = rng.random()
    if kind < 0.5 and plan:
        return plan.pop(0)
    return rng.choice(WRONG) if kind > 0.9 else rng.choice(said.admissible)


def main(argv: Sequence[str]) -> int:
    """Measure; the last line on stdout is one JSON object. Exit code 1 where a transcript differs."""
    parser = CommandParser(
        "rollcage bench alfworld",
        "Play the same games with the same actions in alfworld's own environment and in ours, in turns, and compare\n"
        "times and transcripts. Our translations go to a folder of their own, so that first resets are first ones.",
        "rollcage bench alfworld\nrollcage bench alfworld --split train --games 50 --output benchmarks/results\n"
        "rollcage bench alfworld --dataset sample --games 6 --resets 1000",
    )
    parser.add_argument("--dataset", choices=DATASETS, default="official", help="which games (default: official)")
    parser.add_argument("--split", default="valid_unseen", help="of the games (default: valid_unseen)")
    parser.add_argument("--games", type=positive, default=20, help="how many (default: 20)")
    parser.add_argument("--steps", type=positive, default=20, help="in each game (default: 20)")
    parser.add_argument("--resets", type=natural, default=10_000, help="for the memory they take (default: 10000)")
    parser.add_argument("--output", type=Path, help="folder for alfworld.md and alfworld.json")
    arguments = parser.parse_args(argv)
    load_before = os.getloadavg()[0]
    before = os.environ.get("ROLLCAGE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ROLLCAGE_CACHE"] = folder
        try:
            result = asyncio.run(measure(arguments.dataset, arguments.split, arguments.games, arguments.steps))
            result["memory"] = memory(arguments.dataset, arguments.split, arguments.games, arguments.resets)
        finally:
            os.environ.pop("ROLLCAGE_CACHE")
            if before is not None:
                os.environ["ROLLCAGE_CACHE"] = before
    result["how"] = {
        "command": f"rollcage bench alfworld {' '.join(argv)}".strip(),
        "games": arguments.games,
        "steps": arguments.steps,
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


async def measure(dataset: str, split: str, num_games: int, num_steps: int) -> dict[str, Any]:
    """Return times of resets and steps (seconds, one for each game; a step's is the median) and what differed."""
    kwargs = {"dataset": dataset, "split": split, "instructions": False, "max_turns": None}
    env = make(ENV_ID, **kwargs).unwrapped
    assert isinstance(env, ALFWorldEnv)
    stock = Stock()
    times: dict[str, list[float]] = defaultdict(list)
    different: list[str] = []
    placement = make_placement("process", EnvConfig(ENV_ID, kwargs))
    try:
        handle = await placement.acquire(deadline_s=DEADLINE_S)
        warm_up = env.tasks.task(split, 0)
        env.reset(options={"task": warm_up.id})  # imports, and the pack's games are unpacked
        for number, index in enumerate(sample_indices(env.tasks, split, num_games, seed=0)):
            task_id = env.tasks.task(split, index).id
            text = env.tasks.source.text(task_id)
            rng = random.Random(number)

            def timed(name: str, call: Callable[[], Any]) -> Any:
                start = time.perf_counter()
                value = call()
                times[name].append(time.perf_counter() - start)
                return value

            def ours(task_id: str = task_id) -> Said:
                observation, info = env.reset(options={"task": task_id})
                return Said(observation, info["admissible_commands"], False)

            open_game.cache_clear()
            theirs = partial(stock.reset, text)
            said = timed("alfworld reset", theirs) if number % 2 else None
            first = timed("first reset", ours)
            said = said or timed("alfworld reset", theirs)
            open_game.cache_clear()
            timed("reset from disk", ours)
            timed("reset from memory", ours)
            options = {"task": task_id}
            await handle.reset(seed=None, options=options, deadline_s=DEADLINE_S)
            start = time.perf_counter()
            await handle.reset(seed=None, options=options, deadline_s=DEADLINE_S)
            times["reset in a process"].append(time.perf_counter() - start)
            if said != first:
                different.append(f"{task_id}: reset")
            plan = env.expert_plan()
            steps: dict[str, list[float]] = defaultdict(list)
            for turn in range(num_steps):
                action = choose_action(rng, said, plan)
                marks = [time.perf_counter()]
                said = stock.step(action)
                marks.append(time.perf_counter())
                observation, _, won, _, info = env.step(action)
                marks.append(time.perf_counter())
                await handle.step(action, deadline_s=DEADLINE_S)
                marks.append(time.perf_counter())
                for name, begun, ended in zip(("alfworld", "ours", "in a process"), marks, marks[1:], strict=False):
                    steps[name].append(ended - begun)
                if said != Said(observation, info["admissible_commands"], won):
                    different.append(f"{task_id}: turn {turn}, {action!r}")
                    break
                if won:
                    break
            for name, taken in steps.items():
                times[f"{name} step"].append(statistics.median(taken))
            sys.stderr.write(f"{number + 1} of {num_games}\n")
        await handle.release()
    finally:
        await placement.close()
    return {"seconds": dict(times), "different": different}


def memory(dataset: str, split: str, num_games: int, num_resets: int) -> dict[str, int]:
    """Return the resident memory in bytes of this process after a tenth of so many resets, and after all."""
    env = make(ENV_ID, dataset=dataset, split=split)
    after = {}
    indices = sample_indices(env.unwrapped.tasks, split, num_games, seed=0)  # type: ignore[attr-defined]
    tasks = [env.unwrapped.tasks.task(split, index).id for index in indices]  # type: ignore[attr-defined]
    for number in range(1, num_resets + 1):
        # Mostly games that are open already; one in ten is opened anew.
        env.reset(options={"task": tasks[number % min(4, len(tasks)) if number % 10 else number // 10 % len(tasks)]})
        env.step("look")
        if number in (num_resets // 10, num_resets):
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            after[f"after {number} resets"] = pages * os.sysconf("SC_PAGE_SIZE")
    return after


_ROWS = (
    ("first reset", "alfworld reset"),
    ("reset from disk", "alfworld reset"),
    ("reset from memory", "alfworld reset"),
    ("reset in a process", "alfworld reset"),
    ("ours step", "alfworld step"),
    ("in a process step", "alfworld step"),
)


def report(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    how, seconds = result["how"], result["seconds"]
    versions = ", ".join(f"{name} {number}" for name, number in how["versions"].items())
    lines = [
        "# ALFWorld: speed beside alfworld's own environment",
        "",
        f"How: `{how['command']}`: {how['games']} games, up to {how['steps']} actions each (expert's, random and wrong "
        f"ones), the same in all, one after the other. {versions}; load {how['load_before']:.2f} before and "
        f"{how['load_after']:.2f} after (this command's own part is 1). Medians over the games; the last column is the "
        "median of the games' ratios.",
        "",
        "| | ms | alfworld's, ms | times as fast |",
        "| --- | --: | --: | --: |",
    ]
    for ours, theirs in _ROWS:
        ratio = statistics.median(b / a for a, b in zip(seconds[ours], seconds[theirs], strict=True))
        own, stock = (statistics.median(seconds[name]) * 1e3 for name in (ours, theirs))
        lines.append(f"| {ours.removeprefix('ours ')} | {own:.3g} | {stock:.4g} | {ratio:.3g} |")
    grown = ", ".join(f"{value / 2**20:.0f} MiB {name}" for name, value in result["memory"].items())
    different = "; ".join(result["different"]) or "none"
    lines += ["", f"Transcripts that differ: {different}. Resident memory of this process: {grown}.", ""]
    return "\n".join(lines)
