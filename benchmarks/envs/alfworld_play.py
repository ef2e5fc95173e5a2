"""The same games with the same actions in alfworld's own environment, in ours, and in ours somewhere else."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from rollcage.benchmarks.envs.footprint import DEADLINE_S, proportional_bytes, resident_bytes
from rollcage.envs import make
from rollcage.envs.alfworld.env import ALFWorldEnv
from rollcage.envs.alfworld.games import find_source, open_game
from rollcage.envs.alfworld.source import PLACEHOLDER, GameText
from rollcage.envs.placements import EnvHandle
from rollcage.envs.tasks import sample_indices
from rollcage.errors import require

ENV_ID = "rollcage/ALFWorld-v0"
WRONG = ("go to the moon", "Look", " look ", "", "take everything", "put mug 1 in/on desk 1")


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


async def compare(
    kwargs: Mapping[str, Any], num_games: int, num_steps: int, places: Mapping[str, EnvHandle]
) -> dict[str, Any]:
    """Return times of resets and steps, and what differed; see `measure`."""
    split = str(kwargs["split"])
    env = make(ENV_ID, **kwargs).unwrapped
    assert isinstance(env, ALFWorldEnv)
    stock = Stock()
    times: dict[str, list[float]] = defaultdict(list)
    different: list[str] = []
    options: dict[str, Any] = {"task": env.tasks.task(split, 0).id}
    env.reset(options=options)  # imports, and the pack's games are unpacked
    for handle in places.values():
        await handle.reset(options=options, deadline_s=DEADLINE_S)
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
        for place, handle in places.items():
            await handle.reset(options=options, deadline_s=DEADLINE_S)
            start = time.perf_counter()
            again = await handle.reset(options=options, deadline_s=DEADLINE_S)
            times[f"reset {place}"].append(time.perf_counter() - start)
            if Said(again[0], again[1]["admissible_commands"], False) != first:
                different.append(f"{task_id}: reset {place}")
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
            ours_said = Said(observation, info["admissible_commands"], won)
            for place, handle in places.items():
                there, _, won_there, _, info = await handle.step(action, deadline_s=DEADLINE_S)
                marks.append(time.perf_counter())
                if Said(there, info["admissible_commands"], won_there) != ours_said:
                    different.append(f"{task_id}: turn {turn}, {action!r}, {place}")
            for name, begun, ended in zip(("alfworld", "ours", *places), marks, marks[1:], strict=False):
                steps[name].append(ended - begun)
            if said != ours_said:
                different.append(f"{task_id}: turn {turn}, {action!r}")
                break
            if won:
                break
        for name, taken in steps.items():
            times[f"{name} step"].append(statistics.median(taken))
        sys.stderr.write(f"{number + 1} of {num_games}\n")
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
            after[f"after {number} resets"] = resident_bytes()
    return after


def stock_bytes(kwargs: Mapping[str, Any], task_id: str) -> int:
    """Return what a process takes that plays a game in alfworld's own environment."""
    source = find_source(str(kwargs["dataset"]))
    Stock().reset(source.text(task_id))
    return proportional_bytes()
