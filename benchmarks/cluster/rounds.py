"""The trainer's own loop over engines and a placement of any kind, with a learner that takes no time, measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rollcage.envs import TextEnv, make
from rollcage.envs.placements import EnvConfig, Placement
from rollcage.errors import RollcageError
from rollcage.recorder import NullRecorder
from rollcage.trainer.engines.base import Engine
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


@dataclass(frozen=True)
class Round:
    """What was measured, without the warm-up.

    Attributes:
        num_episodes: that were trained on.
        seconds: of the wall's clock.
        cpu_s: of this process: what orchestrates, and the engines and environments where they are in it.
        num_started: episodes of the whole run, the warm-up and what was in flight at its end included.
    """

    num_episodes: int
    seconds: float
    cpu_s: float
    num_started: int

    @property
    def episodes_per_s(self) -> float:
        """Throughput."""
        return self.num_episodes / self.seconds


async def play(
    engines: Sequence[Engine],
    placement: Placement,
    env: EnvConfig,
    config: RolloutConfig,
    *,
    num_updates: int,
    warm_up: int = 1,
) -> Round:
    """Train for ``warm_up`` updates and then ``num_updates`` measured ones; engines and placement are closed then.

    Raises:
        RollcageError: an episode failed, so that this is no measurement; or see `train`.
    """
    inner = make(env.env_id, **env.kwargs).unwrapped
    assert isinstance(inner, TextEnv)
    order = TaskOrder(inner.tasks, "train", seed=0)
    chat, router, progress = ChatFormat(load_tokenizer(small_policy_path())), Router(engines), Progress()
    marks: list[tuple[float, float, int]] = []

    def agent(group: int, member: int, seed: int) -> PolicyAgent:
        return PolicyAgent(router, chat, Sampling(1024), name=f"{group}.{member}", group=str(group), seed=seed)

    async def after_update(metrics: dict[str, float]) -> None:
        marks.append((time.perf_counter(), time.process_time(), int(metrics["account/trained"])))

    try:
        await router.start()
        parts = Parts(ScriptedLearner(train_s=0.0), router, placement, order.task_id, agent)
        total = warm_up + num_updates
        await train(config, parts, progress, NullRecorder(), num_updates=total, after_update=after_update)
    finally:
        await placement.close()
        await router.close()
    if progress.account.failed:
        raise RollcageError(f"episodes failed: {dict(progress.account.failed)}; nothing is measured")
    (begin_s, begin_cpu_s, before), (end_s, end_cpu_s, after) = marks[warm_up - 1], marks[-1]
    return Round(after - before, end_s - begin_s, end_cpu_s - begin_cpu_s, progress.account.started)


def rollout(num_slots: int, *, num_groups: int, async_ratio: float = 2.0) -> RolloutConfig:
    """Return batches of ``num_groups`` x 4, made so far ahead that no slot waits for training."""
    return RolloutConfig(num_groups=num_groups, group_size=4, num_slots=num_slots, async_ratio=async_ratio)
