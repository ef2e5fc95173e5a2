"""Evaluation: which tasks, by whom, how often; and what came of it."""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.envs.registration import load_env_creator

from rollcage.envs import TextEnv, find_spec, make, sample_indices
from rollcage.envs.placements.base import EnvConfig, Placement, PlacementError
from rollcage.errors import UserError
from rollcage.recorder import Recorder
from rollcage.trainer.agents.policies import SOLVERS, Policy
from rollcage.trainer.evaluation.statistics import clustered_ci95, pass_at_k
from rollcage.trainer.evaluation.store import EpisodeStore
from rollcage.trainer.progress import ProgressLine
from rollcage.trainer.rollout.episode import Deadlines, declared_s, run_episode
from rollcage.trainer.rollout.record import trajectory_to_json
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.types import Failure, Trajectory

DEADLINES = Deadlines(env_s=120.0, turn_s=6 * 3600.0, episode_s=24 * 3600.0)
"""Generous: an evaluation waits for a slow model rather than lose an episode; an endpoint has a deadline of its own."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is evaluated: all that a result depends on beside the policy.

    Attributes:
        env: the environment.
        split: where the tasks come from.
        task_ids: the tasks, in seeded order.
        seed: keys every environment's and every draw's seed, together with the task and the attempt.
        attempts: episodes of each task.
        placement: where the environment asks to run ("inline", "process").
        tools: that it declares.
        quarantined: ids of the split's tasks that cannot be scored and were left out by the task set, with the reason.
        env_s: seconds that one reset or step may take, where the environment asks for more than is usual.
    """

    env: EnvConfig
    split: str
    task_ids: tuple[str, ...]
    seed: int = 0
    attempts: int = 1
    placement: str = "inline"
    tools: tuple[Mapping[str, Any], ...] = ()
    quarantined: Mapping[str, str] = field(default_factory=dict)
    env_s: float = 0.0


def plan(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    split: str | None = None,
    num_tasks: int | None = None,
    seed: int = 0,
    attempts: int = 1,
    solver: str | None = None,
) -> Evaluation:
    """Choose the tasks of an evaluation, and find out early what would make every episode fail.

    Args:
        env_id: registered environment.
        env_kwargs: its arguments.
        split: its split; None for "test" where there is one, else the environment's own default.
        num_tasks: how many of its tasks, drawn by ``seed`` (all where None or too many).
        seed: of the draw and of every episode.
        attempts: episodes of each task.
        solver: where it is one of `SOLVERS`, make sure that the environment can play itself.

    Raises:
        UserError: unknown environment, argument or split; malformed data; a solver that the environment does not offer.
    """
    kwargs = dict(env_kwargs or {})
    if split is not None and _takes_split(env_id):
        kwargs["split"] = split
    env = make(env_id, **kwargs)
    try:
        inner = env.unwrapped
        if not isinstance(inner, TextEnv):
            raise UserError(f"{env_id}: it has no task set to evaluate on: derive it from rollcage.envs.TextEnv.")
        if split is None:
            split = "test" if "test" in inner.tasks.splits else inner.split
        indices = sample_indices(inner.tasks, split, num_tasks, seed)
        task_ids = tuple(inner.tasks.task(split, index).id for index in indices)
        if solver in SOLVERS:
            env.reset(seed=0, options={"task": task_ids[0]})
            _offer(inner, solver)
        found: dict[str, Any] = {
            "placement": str(inner.metadata.get("placement", "inline")),
            "tools": tuple(inner.tools),
            "env_s": declared_s(inner.metadata),
            "quarantined": {
                task_id: reason
                for task_id, reason in getattr(inner.tasks, "quarantined", {}).items()
                if task_id.startswith(f"{split}/")
            },
        }
    finally:
        env.close()
    return Evaluation(EnvConfig(env_id, kwargs), split, task_ids, seed, attempts, **found)


def _offer(env: TextEnv, solver: str) -> None:
    """Raise UserError where the environment does not offer one of `SOLVERS`."""
    if solver == "random":
        env.random_action(np.random.default_rng(0))
    elif (propose := getattr(env, solver, None)) is None:
        raise UserError(f"{type(env).__name__} offers no {solver} policy.")
    else:
        propose()


def _takes_split(env_id: str) -> bool:
    entry_point: Any = find_spec(env_id).entry_point
    try:
        creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    except (ImportError, AttributeError):
        return True  # `make` tells what is wrong
    parameters = inspect.signature(creator).parameters
    return "split" in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


@dataclass(frozen=True, slots=True)
class Result:
    """What came of an evaluation.

    An episode that failed by "infra" or "task" says nothing about the policy: it is left out of every rate. One that
    failed by "model" (the policy could give no action) counts as not successful. Every task weighs the same.

    Attributes:
        evaluation: what was evaluated.
        policy: by whom.
        episodes: the records, ordered by task and attempt (see `rollcage.trainer.rollout.record`).
        seconds: how long this call took.
    """

    evaluation: Evaluation
    policy: str
    episodes: Sequence[Mapping[str, Any]]
    seconds: float

    def scored(self) -> dict[str, list[Mapping[str, Any]]]:
        """Return the scored episodes by task, in the order of the tasks; tasks without one are left out."""
        tasks: dict[str, list[Mapping[str, Any]]] = {}
        for episode in self.episodes:
            if episode["failure"] is None or episode["failure"]["kind"] == "model":
                tasks.setdefault(episode["task_id"], []).append(episode)
        return tasks

    def rate(self, k: int = 1) -> tuple[float, tuple[float, float]] | None:
        """Return pass@k (unbiased; for k = 1 the mean success, avg@attempts) with its 95 % interval.

        Tasks with fewer than ``k`` scored attempts are left out; None where no task is left.
        """
        tasks = [[bool(e["success"]) for e in episodes] for episodes in self.scored().values() if len(episodes) >= k]
        if not tasks:
            return None
        values = [pass_at_k(len(task), sum(task), k) for task in tasks]
        num_trials = sum(len(task) for task in tasks) // k
        return math.fsum(values) / len(values), clustered_ci95(values, num_trials)

    def mean_reward(self) -> float | None:
        """Return the mean return of an episode, every task weighing the same; None where nothing was scored."""
        means = [math.fsum(e["return"] for e in episodes) / len(episodes) for episodes in self.scored().values()]
        return math.fsum(means) / len(means) if means else None

    def failures(self, *, reasons: bool = False) -> dict[str, int]:
        """Count the failed episodes by kind, or by "kind/reason"."""
        found = [episode["failure"] for episode in self.episodes if episode["failure"]]
        return dict(sorted(Counter(f"{f['kind']}/{f['reason']}" if reasons else f["kind"] for f in found).items()))

    def summary(self) -> dict[str, Any]:
        """Return the result as JSON-able data: the contract of ``rollcage eval --json``."""
        rate = self.rate()
        return {
            "env_id": self.evaluation.env.env_id,
            "policy": self.policy,
            "split": self.evaluation.split,
            "num_tasks": len(self.evaluation.task_ids),
            "num_scored": sum(map(len, self.scored().values())),
            "success_rate": rate and rate[0],
            "success_ci95": list(rate[1]) if rate else [None, None],
            "mean_reward": self.mean_reward(),
            "failures": self.failures(),
            "seconds": round(self.seconds, 3),
            "attempts": self.evaluation.attempts,
            "seed": self.evaluation.seed,
            "failure_reasons": self.failures(reasons=True),
            "quarantined": dict(self.evaluation.quarantined),
        }


async def evaluate(
    evaluation: Evaluation,
    policy: Policy,
    placement: Placement,
    *,
    concurrency: int | None = None,
    deadlines: Deadlines = DEADLINES,
    output: Path | None = None,
    progress: bool = False,
    recorder: Recorder | None = None,
    announce: str = "",
) -> Result:
    """Let ``policy`` play every task, several episodes at once; the caller starts and closes policy and placement.

    The result depends on the evaluation and the policy alone, not on how many episodes run at once nor in which order
    they end. With ``output`` every finished episode is on disk at once, and calling again after a kill plays only what
    is missing, and what failed by "infra".

    Args:
        evaluation: what to evaluate.
        policy: who plays.
        placement: where the environment runs.
        concurrency: episodes at once; None for the policy's own choice.
        deadlines: of every wait.
        output: folder of the episodes; None for none.
        progress: show progress on standard error.
        recorder: is told every finished episode.
        announce: a line for standard error once nothing stands in the way of the first episode.

    Raises:
        UserError: ``output`` holds another evaluation, or the policy turns out to be unusable.
    """
    start_s = time.monotonic()
    task_ids, attempts = evaluation.task_ids, evaluation.attempts
    store = EpisodeStore(output, _fingerprint(evaluation, policy)) if output is not None else None
    done: dict[tuple[str, int], Mapping[str, Any]] = {}
    try:
        for record in store.episodes if store else ():
            if not record["failure"] or record["failure"]["kind"] != "infra":
                done[record["task_id"], record["attempt"]] = record
        todo = deque(
            (index, attempt)
            for attempt in range(attempts)
            for index, task_id in enumerate(task_ids)
            if (task_id, attempt) not in done
        )
        if announce:
            sys.stderr.write(f"{announce}\n")
        line = ProgressLine(len(task_ids) * attempts, "episodes", done=len(done)) if progress else None
        num_failed = num_successes = 0

        async def slot() -> None:
            nonlocal num_failed, num_successes
            while todo:
                index, attempt = todo.popleft()
                trajectory = await _play(evaluation, policy, placement, index, attempt, deadlines)
                record = trajectory_to_json(trajectory, evaluation.env, policy.name, attempt=attempt)
                done[trajectory.task_id, attempt] = record
                if store:
                    store.append(record)
                if recorder:
                    recorder.trajectory(record)
                num_successes += trajectory.success
                num_failed += trajectory.failure is not None
                if line:
                    line.update(len(done), successes=str(num_successes), failures=str(num_failed))

        try:
            async with asyncio.TaskGroup() as slots:
                for _ in range(min(concurrency or policy.concurrency, len(todo))):
                    slots.create_task(slot())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            if line:
                line.close()
    finally:
        if store:
            store.close()
    episodes = [done[task_id, attempt] for task_id in task_ids for attempt in range(attempts)]
    return Result(evaluation, policy.name, episodes, time.monotonic() - start_s)


async def _play(
    evaluation: Evaluation, policy: Policy, placement: Placement, index: int, attempt: int, deadlines: Deadlines
) -> Trajectory:
    task_id = evaluation.task_ids[index]
    seed = key_seed(evaluation.seed, task_id, attempt)
    deadlines = deadlines.allowing(evaluation.env_s)
    try:
        handle = await placement.acquire(deadline_s=deadlines.env_s)
    except PlacementError as error:
        return Trajectory((index, attempt), task_id, seed, failure=Failure("infra", error.reason, str(error)))
    try:
        agent = policy.agent(handle, name=f"{task_id}#{attempt}", seed=seed)
        return await run_episode(
            handle, agent, sample_id=(index, attempt), task_id=task_id, seed=seed, deadlines=deadlines
        )
    finally:
        await handle.release()


def _fingerprint(evaluation: Evaluation, policy: Policy) -> dict[str, Any]:
    return {
        "policy": policy.identity,
        "env_id": evaluation.env.env_id,
        "env_kwargs": dict(evaluation.env.kwargs),
        "split": evaluation.split,
        "seed": evaluation.seed,
        "attempts": evaluation.attempts,
        "num_tasks": len(evaluation.task_ids),
        "task_ids": key_seed(*evaluation.task_ids),
    }
