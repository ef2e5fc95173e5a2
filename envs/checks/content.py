"""Checks of what an environment brings along: its tasks, its tools, its expert."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import gymnasium
import numpy as np

from rollcage.envs.checks.play import MAX_TURNS, NUM_SEEDS, offers
from rollcage.envs.checks.subject import CheckFailed, NotOffered, Subject
from rollcage.envs.placements.frames import encode
from rollcage.envs.tasks import Task, sample_indices

NUM_TASKS = 300


def check_expert(subject: Subject) -> str:
    """The expert solves nearly all tasks, and random actions far fewer."""
    env = subject.make()
    if not offers(env, "expert"):
        raise NotOffered("no expert()")
    expert, played = _success_rate(subject, env, lambda rng: str(env.unwrapped.expert()))  # type: ignore[attr-defined]
    if expert < 0.9:
        raise CheckFailed(f"the expert solves {expert:.0%} of {played} tasks; it must solve at least 90 %")
    if not offers(env, "random_action"):
        return f"the expert solves {expert:.0%}"
    chance, _ = _success_rate(subject, env, lambda rng: str(env.unwrapped.random_action(rng)))  # type: ignore[attr-defined]
    if chance > expert - 0.3:
        raise CheckFailed(f"random actions solve {chance:.0%}, nearly as many as the expert ({expert:.0%})")
    return f"the expert solves {expert:.0%}, random actions {chance:.0%}"


def _success_rate(
    subject: Subject, env: gymnasium.Env[str, str], act: Callable[[np.random.Generator], str]
) -> tuple[float, int]:
    """Return the share of the tasks that were solved, and how many were tried."""
    solved = played = 0
    for seed in subject.seeds(NUM_SEEDS):
        played += 1
        rng = np.random.default_rng((seed, 1))  # not the stream from which reset(seed=seed) draws the task
        env.reset(seed=seed)
        for _ in range(MAX_TURNS * 10):
            _, _, terminated, truncated, info = env.step(act(rng))
            if terminated or truncated:
                solved += bool(info.get("success"))
                break
    return solved / played, played


def check_tools(subject: Subject) -> str:
    """Declared tools have a name, a description and a JSON schema of their parameters."""
    tools = subject.text_env().tools
    if not tools:
        raise NotOffered("no tools")
    names = [tool.get("name") for tool in tools]
    if len(set(names)) != len(names):
        raise CheckFailed(f"two tools have the same name: {', '.join(map(str, names))}")
    for tool in tools:
        name, schema = tool.get("name"), tool.get("parameters")
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][\w-]{0,63}", name):
            raise CheckFailed(f"the tool name {name!r} must be letters, digits, _ and -")
        if not isinstance(tool.get("description"), str) or not tool["description"].strip():
            raise CheckFailed(f"the tool {name} has no description")
        if not isinstance(schema, Mapping) or schema.get("type") != "object":
            raise CheckFailed(f'the parameters of the tool {name} must be a JSON schema of type "object"')
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping) or not all(isinstance(part, Mapping) for part in properties.values()):
            raise CheckFailed(f"the parameters of the tool {name}: each property must be a JSON schema")
        if missing := [key for key in schema.get("required", []) if key not in properties]:
            raise CheckFailed(f"the tool {name} requires {missing[0]!r}, which is none of its properties")
        encode(tool)
    return ", ".join(map(str, names))


def check_tasks(subject: Subject) -> str:
    """Task ids are stable and unique, each names its task again, and no task stands in two splits."""
    env, other = subject.text_env(), subject.text_env()
    tasks = env.tasks
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    for split, size in tasks.splits.items():
        if size < 0:
            raise CheckFailed(f"the split {split} has the size {size}")
        for index in sample_indices(tasks, split, NUM_TASKS, seed=0):
            task = tasks.task(split, index)
            place = f"{split}[{index}]"
            data = _data(task)
            if (task.id, data) != ((again := other.tasks.task(split, index)).id, _data(again)):
                raise CheckFailed(
                    f"{place} is {task.id!r} in one instance and {again.id!r} in another, or its data differ"
                )
            if (named := tasks.by_id(task.id)).id != task.id or _data(named) != data:
                raise CheckFailed(f"by_id({task.id!r}) returns another task than {place}")
            for key, what in ((("id", task.id), f"the id {task.id!r}"), (("data", data), f"the task {data:.80}")):
                if (before := seen.setdefault(key, (split, place)))[0] != split or (
                    key[0] == "id" and before[1] != place
                ):
                    raise CheckFailed(f"{what} stands in {before[1]} and in {place}")
        if size:
            task = tasks.task(split, 0)
            if (named_id := env.reset(options={"task": task.id})[1]["task_id"]) != task.id:
                raise CheckFailed(f"reset(options={{'task': {task.id!r}}}) poses {named_id!r}")
    return ", ".join(f"{split}: {size}" for split, size in tasks.splits.items())


def _data(task: Task) -> str:
    try:
        return encode({key: value for key, value in task.data.items() if key != "id"})[8:].decode("utf-8", "replace")
    except (TypeError, ValueError) as error:
        raise CheckFailed(f"the data of the task {task.id!r} are not JSON-able: {error}") from None
