"""The loop with scripted parts in virtual time: overlap, conservation, failures, resume (cases T1 to T5, T11)."""

from collections import Counter
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest
from tests.trainer.scripted_run import ScriptedRun, World

from rollcage.envs.placements.base import EnvDied, EnvRaised
from rollcage.trainer.learner.base import LearnerDied
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.scripted import ScriptedLearner
from rollcage.trainer.loop import Progress
from rollcage.trainer.rollout.collector import NothingSucceeds
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.seeding import key_seed

CONFIG = RolloutConfig(
    num_groups=4, group_size=4, num_slots=16, env_deadline_s=5, turn_deadline_s=20, episode_deadline_s=40
)


def config(**changes: Any) -> RolloutConfig:
    return replace(CONFIG, **changes)


def test_rollout_and_training_overlap_when_the_ratio_allows() -> None:
    def seconds(async_ratio: float) -> float:
        return ScriptedRun(config(async_ratio=async_ratio, num_slots=16), train_s=2.0)(10).progress.train_s

    assert seconds(1.0) < 0.7 * seconds(0.0)


def test_t1_an_environment_that_raises_or_hangs_costs_its_own_sample_only() -> None:
    faults = iter([EnvRaised("boom"), EnvRaised("boom")])
    world = World(
        fault=lambda task, seed, turn: next(faults, None) if task == "task 1" and turn else None,
        latency_s=lambda task, seed, turn: 1e9 if task == "task 2" and turn else 0.1,
    )
    run = ScriptedRun(config(), world)(3)
    failed = run.progress.account.failed
    assert failed["infra/env_raised"] == 2
    assert failed["infra/env_timeout"] == 2 * 4  # every member of task 2, and its one second try
    assert all(2 not in groups for groups in run.groups)  # nobody of task 2 survived
    assert all(len(groups) == 4 for groups in run.groups)  # yet every batch was full
    assert {t.failure.reason for t in run.episodes if t.failure} == {"env_raised", "env_timeout"}


def test_t1_a_group_with_one_survivor_is_dropped_and_counted() -> None:
    faults = chain([None], repeat(EnvDied("gone")))
    world = World(fault=lambda task, seed, turn: next(faults) if task == "task 0" and turn else None)
    run = ScriptedRun(config(), world)(2)
    assert run.account.filtered == 1
    assert all(0 not in groups for groups in run.groups)


def test_a_member_that_fails_twice_is_left_out_of_its_group() -> None:
    faults = repeat(EnvDied("gone"), 5)  # four members, each tried twice at most: one or two of them fail twice
    world = World(fault=lambda task, seed, turn: next(faults, None) if task == "task 0" and turn else None)
    run = ScriptedRun(config(async_ratio=0.0), world)(1)
    sizes = Counter(int(g) for g in run.batches[0].group_ids)
    assert 2 <= sizes[0] <= 3
    assert run.progress.account.failed.total() == 5


def test_t2_a_straggler_ends_by_its_deadline_and_the_step_finishes() -> None:
    world = World(latency_s=lambda task, seed, turn: 4.9 if task == "task 0" else 0.1)
    run = ScriptedRun(config(), world)(4)
    assert all(row["time/wait_s"] < 20 for row in run.metrics)
    assert any(0 in groups for groups in run.groups)  # slow, but within its deadline: not lost


def test_t3_when_nothing_succeeds_the_run_ends_with_the_reason() -> None:
    run = ScriptedRun(config(), World(fault=lambda task, seed, turn: EnvDied("the disk is full")))
    with pytest.raises(NothingSucceeds, match="the disk is full"):
        run(1)
    run.progress.account.check(0)


def test_t3_a_learner_that_dies_ends_the_run_and_no_sample_is_lost_from_the_account() -> None:
    class Dying(ScriptedLearner):
        async def train(self, batch: Batch) -> dict[str, float]:
            raise LearnerDied("rank 0 is gone")

    run = ScriptedRun(config(), learner=Dying)
    with pytest.raises(LearnerDied, match="rank 0"):
        run(3)
    run.progress.account.check(0)
    assert run.progress.account.cancelled > 0
    assert run.progress.account.trained == 0


@pytest.mark.parametrize("async_ratio", [0.0, 1.0, 1.5])
def test_t5_a_resumed_run_goes_on_with_the_same_versions_and_tasks(async_ratio: float) -> None:
    whole = ScriptedRun(config(async_ratio=async_ratio))(6)
    killed = ScriptedRun(config(async_ratio=async_ratio))(3)
    resumed = ScriptedRun(config(async_ratio=async_ratio))
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
        run = ScriptedRun(small, train_s=train_s)
        run.progress = progress
        run(num_updates)
        trained |= {int(group) for batch in run.batches for group in batch.group_ids}
        checkpoint = run.checkpoints[-1]
        assert trained | set(checkpoint["restart"]) == set(range(checkpoint["next_group"]))
        assert not trained & set(checkpoint["restart"])
        progress = Progress.from_json(checkpoint)


def test_a_reward_that_float32_cannot_square_costs_its_sample_only() -> None:
    run = ScriptedRun(config(), World(reward=lambda task, seed, action: 1e39 if seed % 3 == 0 else 1.0))(3)
    assert run.progress.account.failed.total() > 0
    assert all(np.isfinite(batch.returns).all() for batch in run.batches)


def test_t11_the_account_closes_at_every_update() -> None:
    world = World(fault=lambda task, seed, turn: EnvRaised("boom") if key_seed(task) % 5 == 0 else None)
    run = ScriptedRun(config(async_ratio=1.5, num_slots=24), world)(10)
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

    class Gapped(ScriptedLearner):
        async def train(self, batch: Batch) -> dict[str, float]:
            return {**await super().train(batch), "logprob_gap_mean": next(gaps)}

    run = ScriptedRun(config(), learner=Gapped)(3)
    assert all("learner/logprob_gap_mean" in row for row in run.metrics)
    gap_events = [fields for name, fields in run.recorder.events if name == "logprob_gap"]
    assert gap_events == [{"mean": 0.3, "policy_version": 2}]
