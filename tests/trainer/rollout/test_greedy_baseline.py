"""The greedy rollout of a task: its return goes with the group, and it is counted but not trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.trainer.scripted_run import ScriptedRun, World

from rollcage.envs.placements.base import EnvDied
from rollcage.trainer.rollout.collector import GREEDY, NothingSucceeds
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.seeding import key_seed

CONFIG = RolloutConfig(
    num_groups=4,
    group_size=3,
    num_slots=64,
    greedy_baseline=True,
    env_deadline_s=500,
    turn_deadline_s=900,
    episode_deadline_s=1800,
)


def is_greedy(task: str, seed: int, attempt: int = 0) -> bool:
    """Return whether the environment's seed is that of the task's greedy rollout."""
    return seed == key_seed(7, task, int(task.split()[-1]), GREEDY, attempt)


def world(
    greedy_s: float = 0.1, fault: Callable[[str, int, int], Exception | None] = lambda task, seed, turn: None
) -> World:
    return World(
        latency_s=lambda task, seed, turn: greedy_s if is_greedy(task, seed) else 0.1,
        reward=lambda task, seed, action: int(task.split()[-1]) + (0.5 if is_greedy(task, seed) else seed % 2),
        fault=fault,
    )


@pytest.mark.parametrize("replicate", [True, False])
@pytest.mark.parametrize("greedy_s", [0.01, 60.0])
def test_every_group_carries_the_return_of_its_greedy_rollout(greedy_s: float, replicate: bool) -> None:
    run = ScriptedRun(replace(CONFIG, replicate=replicate), world(greedy_s))(3)
    for batch in run.batches:
        assert len(batch) == 12, "three members of four groups, and no more"
        assert batch.greedy_returns.tolist() == [group + 0.5 for group in batch.group_ids]
        assert np.isin(batch.returns - batch.group_ids, [0, 1]).all()
    greedy = [episode for episode in run.episodes if episode.sample_id[1] == GREEDY]
    assert {episode.sample_id[0] for episode in greedy} >= {g for groups in run.groups for g in groups}
    assert run.account.filtered == len(greedy)
    run.account.check(0)


def test_an_extra_member_that_ends_while_the_greedy_rollout_is_awaited_does_not_enlarge_the_group() -> None:
    run = ScriptedRun(replace(CONFIG, extra_members=2, async_ratio=0.0), world(60.0))(2)
    assert [len(batch) for batch in run.batches] == [12, 12]
    assert run.account.cancelled == 2 * 8
    run.account.check(0)


def test_a_greedy_rollout_that_fails_once_is_played_again_and_twice_drops_its_group() -> None:
    def fault(task: str, seed: int, turn: int) -> Exception | None:
        if is_greedy(task, seed) or (task == "task 1" and is_greedy(task, seed, attempt=1)):
            return EnvDied("gone") if task in ("task 0", "task 1") else None
        return None

    run = ScriptedRun(replace(CONFIG, async_ratio=0.0), world(fault=fault))(1)
    assert run.groups == [[0, 2, 3, 4]]
    assert run.account.failed == {"infra/env_died": 3}
    dropped = [fields["group"] for name, fields in run.recorder.events if name == "group_dropped"]
    assert dropped == [1]
    run.account.check(0)


def test_greedy_rollouts_that_never_succeed_end_the_run() -> None:
    def fault(task: str, seed: int, turn: int) -> Exception | None:
        return EnvDied("gone") if is_greedy(task, seed) or is_greedy(task, seed, attempt=1) else None

    run = ScriptedRun(CONFIG, world(fault=fault))
    with pytest.raises(NothingSucceeds, match="gone"):
        run(1)
    run.account.check(0)


def test_without_it_there_is_no_greedy_rollout() -> None:
    run = ScriptedRun(replace(CONFIG, greedy_baseline=False), world())(1)
    assert all(np.isnan(batch.greedy_returns).all() for batch in run.batches)
    assert GREEDY not in {episode.sample_id[1] for episode in run.episodes}


@pytest.mark.parametrize("async_ratio", [0.0, 1.0, 1.5, 3.0])
def test_held_back_samples_are_as_old_as_the_ratio_allows(async_ratio: float) -> None:
    held_back = replace(CONFIG, greedy_baseline=False, hold_back=True, async_ratio=async_ratio)
    staleness = [age for ages in ScriptedRun(held_back)(10).staleness()[4:] for age in ages]
    assert max(staleness) == -(-async_ratio // 1)
    assert np.mean(staleness) == async_ratio
    natural = ScriptedRun(replace(held_back, hold_back=False), train_s=0.1)(10).staleness()
    assert np.mean([age for ages in natural[4:] for age in ages]) <= async_ratio
