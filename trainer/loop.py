"""The training loop: rollout and training side by side; the buffer says what may start and what is trained on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollcage.envs.placements.base import Placement
from rollcage.errors import unwrap
from rollcage.recorder import Recorder
from rollcage.trainer.learner.annotations import annotation_rows
from rollcage.trainer.learner.base import Learner
from rollcage.trainer.learner.batch import make_batch
from rollcage.trainer.pause import Pause
from rollcage.trainer.rollout.account import Account
from rollcage.trainer.rollout.config import RolloutConfig as RolloutConfig
from rollcage.trainer.rollout.episode import Agent
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.rollout.scheduler import Scheduler
from rollcage.trainer.rollout.timed import TimedPlacement
from rollcage.trainer.types import Group, Trajectory

_GAUGE_INTERVAL_S = 0.5

LOGPROB_GAP_WARNING = 0.1
"""Mean |log-probability now - when sampled| of a batch, in nats, from which on an event warns: ten times what a version
of training brings. The sampler then computes something else than the trainer, or the learning rate is far too high."""


@dataclass(frozen=True)
class Parts:
    """What the loop drives, each behind its seam.

    Attributes:
        learner: trains.
        router: the engines.
        placement: the environments.
        task_id: group id -> task id.
        new_agent: (group id, member, seed) -> the agent of one episode.
        record: called with every finished episode.
    """

    learner: Learner
    router: Router
    placement: Placement
    task_id: Callable[[int], str]
    new_agent: Callable[[int, int, int], Agent]
    record: Callable[[Trajectory], None] = lambda trajectory: None


@dataclass(slots=True)
class Progress:
    """Where a run stands: all that a checkpoint must hold beside the learner's own state.

    Attributes:
        policy_version: updates made.
        next_group: id of the next group in task-start order.
        restart: ids of groups that had started and were not trained on yet.
        account: of all samples.
        train_s: seconds spent in the loop.
    """

    policy_version: int = 0
    next_group: int = 0
    restart: list[int] = field(default_factory=list)
    account: Account = field(default_factory=Account)
    train_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {
            "policy_version": self.policy_version,
            "next_group": self.next_group,
            "restart": self.restart,
            "account": self.account.to_json(),
            "train_s": self.train_s,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Progress:
        """Go on from a checkpoint: what was in flight then starts again, and counts as cancelled once."""
        progress = cls(**{**data, "account": Account.from_json(data["account"])})
        progress.account.cancelled += progress.account.open
        return progress


async def train(
    config: RolloutConfig,
    parts: Parts,
    progress: Progress,
    recorder: Recorder,
    *,
    num_updates: int,
    max_train_s: float = float("inf"),
    seed: int = 0,
    after_update: Callable[[dict[str, float]], Awaitable[None]],
    pause: Pause | None = None,
) -> None:
    """Train until ``num_updates`` updates are made or ``max_train_s`` seconds are spent.

    Args:
        config: how samples are made.
        parts: what is driven.
        progress: where to start; kept up to date.
        recorder: hears of metrics, spans and failures.
        num_updates: stop at this policy version.
        max_train_s: stop at the first update after so many seconds, those before a resume included; pauses are not.
        seed: of environments and sampling.
        after_update: called after each update with its metrics, when `Progress` is what a checkpoint may hold.
        pause: while it is on, no sample and no update is begun.

    Raises:
        RollcageError: the learner died, no engine is left, or nothing succeeds.
    """
    now = asyncio.get_running_loop().time
    account, pause = progress.account, pause or Pause()
    scheduler = Scheduler(
        config,
        task_id=parts.task_id,
        placement=TimedPlacement(parts.placement, parts.router.activity),
        new_agent=parts.new_agent,
        account=account,
        policy_version=progress.policy_version,
        seed=seed,
        first_group=progress.next_group,
        restart=progress.restart,
        recorder=recorder,
        record=parts.record,
        pause=pause,
    )
    await _publish(parts, progress.policy_version, recorder)
    began_s = now() - progress.train_s - pause.total_s
    num_training = 0
    try:
        async with asyncio.TaskGroup() as tasks:
            rollout = tasks.create_task(scheduler.run(), name="rollout")
            gauges = tasks.create_task(_watch(scheduler, parts.router, recorder), name="gauges")
            while progress.policy_version < num_updates and progress.train_s < max_train_s:
                wait_s = now()
                groups = await scheduler.next_batch()
                num_training = sum(len(group.trajectories) for group in groups)
                ready_s = now()
                await pause.passed()
                start_s = now()
                statistics = await parts.learner.train(make_batch(groups))
                trained_s = now()
                annotations = await parts.learner.annotations()
                scheduler.collector.trained(groups)
                num_training = 0
                progress.policy_version += 1
                await _publish(parts, progress.policy_version, recorder)
                scheduler.buffer.publish(progress.policy_version)
                end_s = now()
                account.check(scheduler.num_in_flight)

                for row in annotation_rows(annotations, groups, progress.policy_version - 1):
                    recorder.annotations(row)
                recorder.span("learner", "wait", wait_s, ready_s)
                if start_s - ready_s > 1e-3:
                    recorder.span("learner", "paused", ready_s, start_s)
                recorder.span("learner", "train", start_s, trained_s, policy_version=progress.policy_version)
                recorder.span("learner", "publish", trained_s, end_s, policy_version=progress.policy_version)
                progress.train_s = end_s - began_s - pause.total_s
                progress.next_group, progress.restart = scheduler.next_group, scheduler.outstanding
                metrics = {
                    **describe(groups, progress.policy_version - 1),
                    **{f"learner/{name}": value for name, value in statistics.items()},
                    "time/wait_s": ready_s - wait_s,
                    "time/train_s": trained_s - start_s,
                    "time/publish_s": end_s - trained_s,
                    "time/elapsed_s": progress.train_s,
                    "account/started": account.started,
                    "account/trained": account.trained,
                    "account/filtered": account.filtered,
                    "account/stale": account.stale,
                    "account/failed": account.failed.total(),
                    "account/cancelled": account.cancelled,
                    "account/in_flight": scheduler.num_in_flight,
                }
                if "rhythm_seconds" in statistics:
                    metrics["learner/rhythm_share_of_step"] = statistics["rhythm_seconds"] / (end_s - wait_s)
                if statistics.get("logprob_gap_mean", 0.0) > LOGPROB_GAP_WARNING:
                    recorder.event(
                        "logprob_gap", mean=statistics["logprob_gap_mean"], policy_version=progress.policy_version
                    )
                for group in groups:
                    for trajectory in group.trajectories:
                        recorder.histogram("sample_staleness", progress.policy_version - 1 - trajectory.start_version)
                scheduler.collector.shares.report(recorder)
                recorder.metrics(metrics, policy_version=progress.policy_version)
                await after_update(metrics)
            rollout.cancel()
            gauges.cancel()
    except BaseExceptionGroup as group:
        raise unwrap(group) from group
    finally:
        parts.router.activity.look(at_end=True)
        account.cancelled += num_training + scheduler.buffer.num_samples
    account.check(0)


def describe(groups: Sequence[Group], policy_version: int) -> dict[str, float]:
    """Return what the samples of one batch look like; ``policy_version`` is the one that is about to be updated."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    returns = [[trajectory.return_ for trajectory in group.trajectories] for group in groups]
    staleness = [policy_version - trajectory.start_version for trajectory in trajectories]
    return {
        "rollout/reward": float(np.mean([value for group in returns for value in group])),
        "rollout/success": float(np.mean([trajectory.success for trajectory in trajectories])),
        "rollout/mixed_groups": float(np.mean([len(set(group)) > 1 for group in returns])),
        "rollout/turns": float(np.mean([len(trajectory.turns) for trajectory in trajectories])),
        "rollout/sampled_tokens": float(np.mean([trajectory.num_sampled_tokens for trajectory in trajectories])),
        "rollout/cut_by_length": float(np.mean([trajectory.cut_by_length for trajectory in trajectories])),
        "rollout/splits": float(sum(len(trajectory.segments) - 1 for trajectory in trajectories)),
        "rollout/episode_s": float(np.mean([trajectory.end_s - trajectory.start_s for trajectory in trajectories])),
        "rollout/staleness": float(np.mean(staleness)),
        "rollout/staleness_max": float(max(staleness)),
        "rollout/drift": float(np.mean([t.end_version - t.start_version for t in trajectories])),
        "rollout/num_samples": float(len(trajectories)),
    }


async def _publish(parts: Parts, policy_version: int, recorder: Recorder) -> None:
    now = asyncio.get_running_loop().time
    start_s = now()
    await parts.router.publish(await parts.learner.publish(), policy_version)
    recorder.histogram("publish_seconds", now() - start_s)


async def _watch(scheduler: Scheduler, router: Router, recorder: Recorder) -> None:
    """Record, twice a second, what the rollout side is doing: the other half of the timeline."""
    now = asyncio.get_running_loop().time
    while True:
        await asyncio.sleep(_GAUGE_INTERVAL_S)
        recorder.gauge("running_episodes", scheduler.num_running, at_s=now())
        recorder.gauge("complete_groups", scheduler.buffer.num_complete, at_s=now())
        recorder.gauge("sampled_tokens", router.num_sampled_tokens, at_s=now())
        router.activity.look()
