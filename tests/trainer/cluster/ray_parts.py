"""What the tests of runs on a Ray cluster run there: a scripted engine that any node can make."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcage.envs import TextEnv, make
from rollcage.envs.placements import EnvConfig, make_placement
from rollcage.recorder import NullRecorder
from rollcage.trainer.engines.base import Engine
from rollcage.trainer.engines.config import EngineConfig
from rollcage.trainer.engines.scripted import Line, ScriptedEngine
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
from rollcage.trainer.types import Request, Sampling, Trajectory

ENV = EnvConfig("rollcage/Countdown-v0", {"split": "train", "max_attempts": 3})


def say_numbers(request: Request, policy_version: int, token_s: float) -> Line:
    """Ten letters and a stop, by the request's seed and the policy's version."""
    ids = [100 + (request.seed + 7 * index + policy_version) % 300 for index in range(10)]
    return Line([*ids, min(request.stop_ids)] if request.stop_ids else ids, token_s=token_s)


@dataclass(frozen=True)
class ScriptedConfig(EngineConfig):
    """An engine that says what `say_numbers` says."""

    token_s: float = 0.0

    def make(self, replica: int = 0, *, log: Path | None = None) -> Engine:
        return ScriptedEngine(lambda request, version: say_numbers(request, version, self.token_s))


@dataclass
class Done:
    """What came of a run."""

    progress: Progress
    batches: list[Batch]
    episodes: list[Trajectory]


def train_scripted(
    engines: list[Engine],
    placement_kind: str,
    config: RolloutConfig,
    *,
    num_updates: int,
    restart: str = "fail",
    disturb: Callable[[Done, Router], Awaitable[None]] | None = None,
    num_workers: int = 6,
) -> Done:
    """Train with the loop that every run has; ``disturb`` goes on beside it."""
    env: Any = make(ENV.env_id, **ENV.kwargs).unwrapped
    assert isinstance(env, TextEnv)
    chat = ChatFormat(load_tokenizer(small_policy_path()))
    order = TaskOrder(env.tasks, "train", seed=0)
    done = Done(Progress(), [], [])

    async def after_update(metrics: dict[str, float]) -> None:
        columns = ("trained", "filtered", "stale", "failed", "cancelled", "in_flight")
        assert metrics["account/started"] == sum(metrics[f"account/{column}"] for column in columns)

    async def main() -> None:
        router = Router(engines)
        placement = make_placement(placement_kind, ENV, num_workers=num_workers, restart=restart)

        def agent(group: int, member: int, seed: int) -> PolicyAgent:
            return PolicyAgent(router, chat, Sampling(16), name=f"{group}.{member}", group=str(group), seed=seed)

        learner = ScriptedLearner(train_s=0.1, on_train=done.batches.append)
        parts = Parts(learner, router, placement, order.task_id, agent, done.episodes.append)
        disturbing = None
        try:
            await router.start()
            if disturb is not None:
                disturbing = asyncio.create_task(disturb(done, router))
            await train(
                config, parts, done.progress, NullRecorder(), num_updates=num_updates, after_update=after_update
            )
            if disturbing is not None:
                await disturbing
        finally:
            if disturbing is not None:
                disturbing.cancel()
            await placement.close()
            await router.close()

    asyncio.run(main())
    return done
