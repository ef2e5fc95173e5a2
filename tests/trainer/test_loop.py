"""The loop with scripted parts in virtual time: freshness, conservation, failures, resume (cases T1 to T5, T11)."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rollcage.envs.placements.base import EnvDied, EnvRaised, EnvTimeout
from rollcage.recorder import NullRecorder
from rollcage.trainer.clock import run_virtual
from rollcage.trainer.engines.scripted import ScriptedEngine
from rollcage.trainer.learner.base import LearnerDied
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.scripted import ScriptedLearner
from rollcage.trainer.loop import Parts, Progress, RolloutConfig, train
from rollcage.trainer.rollout.collector import NothingSucceeds
from rollcage.trainer.rollout.episode import Message
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.types import Segment, Trajectory


class FakeHandle:
    """One-turn environment: the reward is the last digit of the action; faults are scripted by task."""

    def __init__(self, fault: Callable[[str], None], latency_s: Callable[[str], float]) -> None:
        self._fault, self._latency_s = fault, latency_s
        self._task = ""

    async def reset(
        self, *, seed: int | None = None, options: Any = None, deadline_s: float
    ) -> tuple[str, dict[str, Any]]:
        self._task = options["task"]
        return f"prompt of {self._task}", {"task_id": self._task, "success": False, "failure": None}

    async def step(self, action: str, *, deadline_s: float) -> tuple[str, float, bool, bool, dict[str, Any]]:
        latency_s = self._latency_s(self._task)
        await asyncio.sleep(min(latency_s, deadline_s))
        if latency_s > deadline_s:
            raise EnvTimeout("too slow")
        self._fault(self._task)
        reward = int(action) % 10 / 10
        return "", reward, True, False, {"task_id": self._task, "success": reward > 0.5, "failure": None}

    async def call(self, method: str, *args: Any, deadline_s: float) -> Any:
        raise AssertionError(method)

    async def release(self) -> None:
        pass


class FakePlacement:
    def __init__(
        self,
        fault: Callable[[str], None] = lambda task: None,
        latency_s: Callable[[str], float] = lambda task: 0.1,
    ) -> None:
        self._fault, self._latency_s = fault, latency_s

    async def acquire(self, *, deadline_s: float) -> FakeHandle:
        return FakeHandle(self._fault, self._latency_s)

    async def close(self) -> None:
        pass


class FakeAgent:
    """Takes a time that its seed decides, then says a number that its seed decides."""

    def __init__(self, router: Router, seed: int) -> None:
        self._router, self._seed = router, seed
        self.segments: list[Segment] = []

    @property
    def policy_version(self) -> int:
        return self._router.policy_version

    async def act(self, observation: str) -> Message:
        version = self._router.policy_version
        await asyncio.sleep(0.1 + key_seed(self._seed, "time") % 100 / 50)
        self.segments.append(Segment([1, self._seed % 1000], [0, 1], [0.0, -0.5], [-1, version]))
        return Message(str(self._seed % 10), start=1, end=2)


class Run:
    """One run of the loop and all that it did."""

    def __init__(self, config: RolloutConfig, *, placement: FakePlacement | None = None, train_s: float = 1.0) -> None:
        self.config, self.placement, self.train_s = config, placement or FakePlacement(), train_s
        self.progress = Progress()
        self.batches: list[Batch] = []
        self.metrics: list[dict[str, float]] = []
        self.tasks: list[str] = []
        self.failures: list[Trajectory] = []
        self.checkpoints: list[dict[str, Any]] = []

    def __call__(self, num_updates: int, *, on_train: Callable[[Batch], None] | None = None) -> "Run":
        run_virtual(lambda: self._main(num_updates, on_train or self.batches.append))
        return self

    async def _main(self, num_updates: int, on_train: Callable[[Batch], None]) -> None:
        router = Router([ScriptedEngine(lambda request, version: [1])])
        parts = Parts(
            learner=ScriptedLearner(train_s=self.train_s, on_train=on_train),
            router=router,
            placement=self.placement,
            task_id=self._task_id,
            new_agent=lambda group, member, seed: FakeAgent(router, seed),
            record=lambda trajectory: self.failures.append(trajectory) if trajectory.failure else None,
        )

        async def after_update(metrics: dict[str, float]) -> None:
            self.metrics.append(metrics)
            self.checkpoints.append(self.progress.to_json())

        await train(
            self.config,
            parts,
            self.progress,
            NullRecorder(),
            num_updates=num_updates,
            seed=7,
            after_update=after_update,
        )

    def _task_id(self, group_id: int) -> str:
        self.tasks.append(f"task {group_id}")
        return self.tasks[-1]


CONFIG = RolloutConfig(
    num_groups=4, group_size=4, num_slots=16, env_deadline_s=5, turn_deadline_s=20, episode_deadline_s=40
)


def config(**changes: Any) -> RolloutConfig:
    from dataclasses import replace

    return replace(CONFIG, **changes)


@pytest.mark.parametrize("async_ratio", [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0])
def test_no_sample_is_older_than_the_asynchronous_ratio_allows(async_ratio: float) -> None:
    run = Run(config(async_ratio=async_ratio, num_slots=40))(12)
    bound = -(-async_ratio // 1)
    for version, batch in enumerate(run.batches):
        staleness = version - batch.start_versions
        assert staleness.max() <= bound
        assert staleness.min() >= 0
        if async_ratio % 1:
            assert np.mean(staleness == bound) <= async_ratio % 1 + 1e-9
    if async_ratio >= 1:
        assert max(row["rollout/staleness_max"] for row in run.metrics) >= 1  # the bound is not met by idling


def test_rollout_and_training_overlap_when_the_ratio_allows() -> None:
    def seconds(async_ratio: float) -> float:
        return Run(config(async_ratio=async_ratio, num_slots=16), train_s=2.0)(10).progress.train_s

    assert seconds(1.0) < 0.7 * seconds(0.0)


def test_t4_synchronous_runs_do_not_deadlock_and_are_bit_identical() -> None:
    first, second = (Run(config(async_ratio=0.0, num_slots=slots))(5) for slots in (16, 5))
    for one, other in zip(first.batches, second.batches, strict=True):
        for name in ("token_ids", "rollout_logprobs", "rewards", "returns", "group_ids", "episode_ids"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert len(first.batches) == 5


def test_t1_an_environment_that_raises_or_hangs_costs_its_own_sample_only() -> None:
    calls: Counter[str] = Counter()

    def fault(task: str) -> None:
        calls[task] += 1
        if task == "task 1" and calls[task] <= 2:
            raise EnvRaised("boom")

    placement = FakePlacement(fault, lambda task: 1e9 if task == "task 2" else 0.1)
    run = Run(config(), placement=placement)(3)
    failed = run.progress.account.failed
    assert failed["infra/env_raised"] == 2
    assert failed["infra/env_timeout"] == 2 * 4  # every member of task 2, and its one second try
    assert 2 not in {int(g) for batch in run.batches for g in batch.group_ids}  # nobody of task 2 survived
    assert all(len(np.unique(batch.group_ids)) == 4 for batch in run.batches)  # yet every batch was full
    assert {t.failure.reason for t in run.failures if t.failure} == {"env_raised", "env_timeout"}


def test_t1_a_group_with_one_survivor_is_dropped_and_counted() -> None:
    num_calls = 0

    def fault(task: str) -> None:
        nonlocal num_calls
        if task == "task 0":
            num_calls += 1
            if num_calls > 1:
                raise EnvDied("gone")

    run = Run(config(), placement=FakePlacement(fault))(2)
    assert run.progress.account.filtered == 1
    assert 0 not in {int(g) for batch in run.batches for g in batch.group_ids}


def test_a_member_that_fails_twice_is_left_out_of_its_group() -> None:
    num_calls = 0

    def fault(task: str) -> None:
        nonlocal num_calls
        if task == "task 0":
            num_calls += 1
            if num_calls <= 5:  # four members, each tried twice at most: one or two of them fail twice
                raise EnvDied("gone")

    run = Run(config(async_ratio=0.0), placement=FakePlacement(fault))(1)
    sizes = Counter(int(g) for g in run.batches[0].group_ids)
    assert 2 <= sizes[0] <= 3
    assert run.progress.account.failed.total() == 5


def test_t2_a_straggler_ends_by_its_deadline_and_the_step_finishes() -> None:
    placement = FakePlacement(latency_s=lambda task: 4.9 if task == "task 0" else 0.1)
    run = Run(config(), placement=placement)(4)
    assert all(row["time/wait_s"] < 10 for row in run.metrics)
    assert 0 in {int(g) for batch in run.batches for g in batch.group_ids}  # slow, but within its deadline: not lost


def test_t3_when_nothing_succeeds_the_run_ends_with_the_reason() -> None:
    def fault(task: str) -> None:
        raise EnvDied("the disk is full")

    run = Run(config(), placement=FakePlacement(fault))
    with pytest.raises(NothingSucceeds, match="the disk is full"):
        run(1)
    run.progress.account.check(0)


def test_t3_a_learner_that_dies_ends_the_run_and_no_sample_is_lost_from_the_account() -> None:
    def die(batch: Batch) -> None:
        raise LearnerDied("rank 0 is gone")

    run = Run(config())
    with pytest.raises(LearnerDied, match="rank 0"):
        run(3, on_train=die)
    run.progress.account.check(0)
    assert run.progress.account.cancelled > 0
    assert run.progress.account.trained == 0


@pytest.mark.parametrize("async_ratio", [0.0, 1.0, 1.5])
def test_t5_a_resumed_run_goes_on_with_the_same_versions_and_tasks(async_ratio: float) -> None:
    whole = Run(config(async_ratio=async_ratio))(6)
    killed = Run(config(async_ratio=async_ratio))(3)
    resumed = Run(config(async_ratio=async_ratio))
    resumed.progress = Progress.from_json(killed.checkpoints[-1])
    in_flight = resumed.progress.account.cancelled
    assert (in_flight > 0) == (async_ratio > 0)  # what was in flight at the kill counts as cancelled
    outstanding, next_group = list(resumed.progress.restart), resumed.progress.next_group
    resumed(6)
    assert resumed.progress.policy_version == 6
    # what had started and was not trained on starts again first, then the order goes on where it was
    expected = [f"task {group}" for group in outstanding]
    assert resumed.tasks[: len(expected)] == expected
    if len(resumed.tasks) > len(expected):
        assert resumed.tasks[len(expected)] == f"task {next_group}"
    assert sorted(set(killed.tasks + resumed.tasks)) == sorted(set(whole.tasks))
    if async_ratio == 0:
        for one, other in zip(whole.batches[3:], resumed.batches, strict=True):
            np.testing.assert_array_equal(one.token_ids, other.token_ids)
    assert all((batch.start_versions >= 3).all() for batch in resumed.batches)  # nothing comes from older weights


def test_t5_groups_that_a_second_kill_finds_waiting_for_their_restart_are_not_lost() -> None:
    small = RolloutConfig(num_groups=4, group_size=1, num_slots=2, async_ratio=5.0)
    trained: set[int] = set()
    progress = Progress()
    # a slow learner lets many groups pile up; the second life ends while some of them still wait for one of two slots
    for num_updates, train_s in ((4, 60.0), (5, 1.0), (6, 1.0)):
        run = Run(small, train_s=train_s)
        run.progress = progress
        run(num_updates)
        trained |= {int(group) for batch in run.batches for group in batch.group_ids}
        checkpoint = run.checkpoints[-1]
        assert trained | set(checkpoint["restart"]) == set(range(checkpoint["next_group"]))
        assert not trained & set(checkpoint["restart"])
        progress = Progress.from_json(checkpoint)


def test_a_reward_that_float32_cannot_square_costs_its_sample_only() -> None:
    class Lavish(FakeHandle):
        async def step(self, action: str, *, deadline_s: float) -> tuple[str, float, bool, bool, dict[str, Any]]:
            observation, reward, *rest = await super().step(action, deadline_s=deadline_s)
            return observation, 1e39 if key_seed(action) % 3 == 0 else reward, *rest  # type: ignore[return-value]

    class Bank(FakePlacement):
        async def acquire(self, *, deadline_s: float) -> FakeHandle:
            return Lavish(self._fault, self._latency_s)

    run = Run(config(), placement=Bank())(3)
    assert run.progress.account.failed.total() > 0
    assert all(np.isfinite(batch.returns).all() for batch in run.batches)


def test_t11_the_account_closes_at_every_update() -> None:
    def fault(task: str) -> None:
        if key_seed(task) % 5 == 0:
            raise EnvRaised("boom")

    run = Run(config(async_ratio=1.5, num_slots=24), placement=FakePlacement(fault))(10)
    for row in run.metrics:
        columns = ("trained", "filtered", "stale", "failed", "cancelled", "in_flight")
        assert row["account/started"] == sum(row[f"account/{column}"] for column in columns)
    account = run.progress.account
    account.check(0)
    assert account.failed.total() > 0
    with pytest.raises(AssertionError, match="got lost"):
        account.check(1)


def test_a_sampler_that_sees_other_probabilities_than_the_trainer_is_an_event() -> None:
    """One event for each update whose mean |log-probability now - when sampled| is large."""
    gaps = iter([0.01, 0.3, 0.02])
    events: list[tuple[str, dict[str, Any]]] = []

    class Listener(NullRecorder):
        def event(self, name: str, **fields: Any) -> None:
            events.append((name, fields))

    class Learner(ScriptedLearner):
        async def train(self, batch: Batch) -> dict[str, float]:
            return {**await super().train(batch), "logprob_gap_mean": next(gaps)}

    async def after_update(metrics: dict[str, float]) -> None:
        assert "learner/logprob_gap_mean" in metrics

    async def main() -> None:
        router = Router([ScriptedEngine(lambda request, version: [1])])
        parts = Parts(Learner(), router, FakePlacement(), str, lambda group, member, seed: FakeAgent(router, seed))
        await train(CONFIG, parts, Progress(), Listener(), num_updates=3, after_update=after_update)

    run_virtual(main)
    assert [fields for name, fields in events if name == "logprob_gap"] == [{"mean": 0.3, "policy_version": 2}]
