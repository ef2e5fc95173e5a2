"""Runs with scripted engines and the loop that every run has, on a cluster or here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.trainer.cluster.scripted_config import ScriptedConfig

from rollcage.envs import TextEnv, make
from rollcage.envs.placements import EnvConfig, Placement, make_placement
from rollcage.recorder import NullRecorder
from rollcage.trainer.cluster.cluster import RayCluster
from rollcage.trainer.cluster.config import RayConfig
from rollcage.trainer.engines.base import Engine
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.scripted import ScriptedLearner
from rollcage.trainer.loop import Parts, Progress, train
from rollcage.trainer.models import load_tokenizer
from rollcage.trainer.policies import small_policy_path
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.conversation import ChatFormat
from rollcage.trainer.rollout.policy_agent import PolicyAgent
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.rollout.tasks import TaskOrder
from rollcage.trainer.types import Sampling

ENV = EnvConfig("rollcage/Countdown-v0", {"split": "train", "max_attempts": 3})


@dataclass
class Done:
    """What came of a run."""

    progress: Progress
    batches: list[Batch]
    events: Events


class Events(NullRecorder):
    """Keeps the events that it is told, and the names and labels of gauges."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.gauges: list[tuple[str, dict[str, str]]] = []

    def gauge(self, name: str, value: float, *, at_s: float | None = None, **labels: str) -> None:
        self.gauges.append((name, labels))

    def event(self, name: str, **fields: Any) -> None:
        self.rows.append({"event": name, **fields})

    def of(self, name: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["event"] == name]


def train_scripted(
    shares: Sequence[tuple[RayConfig, int]], engine: ScriptedConfig, config: RolloutConfig, **options: Any
) -> Done:
    """`run_scripted` in an event loop of its own."""
    return asyncio.run(run_scripted(shares, engine, config, **options))


async def run_scripted(
    shares: Sequence[tuple[RayConfig, int]],
    engine: ScriptedConfig,
    config: RolloutConfig,
    *,
    num_updates: int,
    env: EnvConfig = ENV,
    kind: str = "ray",
    logs: Path | None = None,
    disturb: Callable[[Done, Router], Awaitable[None]] | None = None,
) -> Done:
    """Train with the loop that every run has; ``disturb`` goes on beside it.

    Args:
        shares: of the cluster that this process is connected to, each with a number of engines; none: two engines and
            the environments are in this process.
        engine: makes an engine.
        env: whose tasks are those of `ENV`, in the placement ``kind``.
        logs: the folder that what actors write is brought into.
    """
    posing: Any = make(ENV.env_id, **ENV.kwargs).unwrapped
    assert isinstance(posing, TextEnv)
    chat = ChatFormat(load_tokenizer(small_policy_path()))
    order = TaskOrder(posing.tasks, "train", seed=0)
    done = Done(Progress(), [], Events())

    async def after_update(metrics: dict[str, float]) -> None:
        columns = ("trained", "filtered", "stale", "failed", "cancelled", "in_flight")
        assert metrics["account/started"] == sum(metrics[f"account/{column}"] for column in columns)

    async with AsyncExitStack() as stack:
        engines: list[Engine] = []
        placement: Placement | None = None
        for share, num in shares:
            cluster = await RayCluster.connect("", share, num_engines=num, num_ranks=0, logs=logs, recorder=done.events)
            stack.push_async_callback(cluster.close)
            engines += cluster.engines(engine, num)
            placement = placement or await cluster.place(kind, env, num_workers=config.num_slots, restart="fail")
        placement = placement or make_placement("inline", ENV, num_workers=config.num_slots)
        router = Router(engines or [engine.make() for _ in range(2)], recorder=done.events)
        stack.push_async_callback(router.close)
        stack.push_async_callback(placement.close)

        def agent(group: int, member: int, seed: int) -> PolicyAgent:
            return PolicyAgent(router, chat, Sampling(16), name=f"{group}.{member}", group=str(group), seed=seed)

        learner = ScriptedLearner(train_s=0.1, on_train=done.batches.append)
        parts = Parts(learner, router, placement, order.task_id, agent)
        await router.start()
        async with asyncio.TaskGroup() as tasks:
            if disturb is not None:
                tasks.create_task(disturb(done, router))
            await train(
                config, parts, done.progress, NullRecorder(), num_updates=num_updates, after_update=after_update
            )
    return done
