"""Redundant environments: the batch closes on the fastest, the late are cancelled, counted, and their places free."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.trainer.scripted_run import CountingRecorder, ScriptedRun, World

from rollcage.envs.placements.base import EnvDied
from rollcage.monitor.sample_shares import Buckets, in_order, uncut
from rollcage.trainer.loop import Progress
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.rollout.shares import SampleShares

CONFIG = RolloutConfig(
    num_groups=4, group_size=4, num_slots=64, env_deadline_s=500, turn_deadline_s=900, episode_deadline_s=1800
)
SHORT = ("0.125", "0.25", "0.5", "1", "2", "4", "8")
SYNCHRONOUS = replace(CONFIG, async_ratio=0.0)


def slow_tasks(*slow: int, seconds: float = 100.0) -> World:
    names = {f"task {number}" for number in slow}
    return World(latency_s=lambda task, seed, turn: seconds if task in names and turn else 0.1)


def slow_members(seconds: float = 100.0) -> World:
    """One member in five is slow."""
    return World(latency_s=lambda task, seed, turn: seconds if seed % 5 == 0 and turn else 0.1)


def late_groups(run: ScriptedRun) -> set[int]:
    return {fields["group"] for name, fields in run.recorder.events if name == "group_late"}


def test_a_batch_closes_on_the_fastest_groups_and_the_late_ones_are_cancelled() -> None:
    run = ScriptedRun(replace(SYNCHRONOUS, extra_groups=2), slow_tasks(1, 3, 8))(2)
    assert run.groups == [[0, 2, 4, 5], [6, 7, 9, 10]]
    assert all(row["time/wait_s"] < 10 for row in run.metrics)
    assert run.metrics[0]["account/cancelled"] + run.metrics[0]["account/in_flight"] == 8  # those of tasks 1 and 3
    assert run.account.cancelled == 16  # and in the second update those of task 8, and of one that was not needed
    assert late_groups(run) == {1, 3, 8}  # the fourth was complete
    assert ScriptedRun(SYNCHRONOUS, slow_tasks(1, 3, 8))(1).metrics[0]["time/wait_s"] > 100


def test_at_a_ratio_of_1_a_late_group_runs_until_its_last_chance_is_gone() -> None:
    config = replace(CONFIG, async_ratio=1.0, extra_groups=2)
    quick = ScriptedRun(config, slow_tasks(1, 3, seconds=8.0), train_s=10.0)(4)
    # both are overtaken in the first update; they end while it trains, and the second takes them: nothing is lost
    assert [1 in groups for groups in quick.groups] == [False, True, False, False]
    assert not {1, 3} & late_groups(quick)
    late = ScriptedRun(config, slow_tasks(1, 3, seconds=100.0), train_s=10.0)(4)
    assert not {1, 3} & {group for groups in late.groups for group in groups}
    assert all(row["time/wait_s"] < 10 for row in late.metrics)
    assert {1, 3} <= late_groups(late)


def test_more_stragglers_than_redundant_groups_are_waited_for() -> None:
    run = ScriptedRun(replace(SYNCHRONOUS, extra_groups=2), slow_tasks(0, 1, 2))(1)
    assert len(run.groups[0]) == 4
    assert len({0, 1, 2} & set(run.groups[0])) == 1
    assert run.metrics[0]["time/wait_s"] > 100


def test_a_group_closes_on_its_fastest_members() -> None:
    run = ScriptedRun(replace(SYNCHRONOUS, extra_members=4), slow_members())(6)
    assert all(len(batch.returns) == 16 for batch in run.batches)
    assert all(row["time/wait_s"] < 10 for row in run.metrics)
    assert run.account.cancelled == 6 * 4 * 4
    without = ScriptedRun(SYNCHRONOUS, slow_members())(6)
    assert sum(row["time/wait_s"] > 100 for row in without.metrics) >= 4


def test_both_kinds_of_redundancy_together_and_the_place_of_the_late_is_free_at_once() -> None:
    # 30 slots for 6 x 5 episodes: the second batch could not start if the late ones held theirs
    config = replace(SYNCHRONOUS, extra_groups=2, extra_members=1, num_slots=30)
    world = World(latency_s=lambda task, seed, turn: 400.0 if key_seed(task) % 6 == 0 else key_seed(seed) % 10)
    run = ScriptedRun(config, world)(8)
    assert run.progress.train_s < 400
    assert world.num_acquired == world.num_released == run.account.started
    assert world.most_live <= 30


def test_a_redundant_member_makes_a_second_try_needless() -> None:
    num_faults = 0

    def fault(task: str, seed: int, turn: int) -> Exception | None:
        nonlocal num_faults
        if task == "task 0" and turn and num_faults < 3:
            num_faults += 1
            return EnvDied("gone")
        return None

    run = ScriptedRun(replace(SYNCHRONOUS, extra_members=1), World(fault=fault))(1)
    tries = [trajectory for trajectory in run.episodes if trajectory.task_id == "task 0"]
    assert len(tries) == 5 + 2  # the first fault was covered by the fifth member, the others were tried again
    assert list(run.batches[0].group_ids).count(0) == 4


def test_giving_an_environment_back_is_not_torn_by_being_late() -> None:
    torn_s: list[float] = []

    class Slow(World):
        async def acquire(self, *, deadline_s: float) -> Any:
            handle = await super().acquire(deadline_s=deadline_s)

            class Handle:
                reset, step, call = handle.reset, handle.step, handle.call

                async def release(self) -> None:
                    try:
                        await asyncio.sleep(5.0)
                    except asyncio.CancelledError:
                        torn_s.append(asyncio.get_running_loop().time())
                        raise
                    finally:
                        await handle.release()

            return Handle()

    # members end a second apart, so that some are giving back when their group closes, and some are still playing
    world = Slow(latency_s=lambda task, seed, turn: seed % 12 if turn else 0.1)
    run = ScriptedRun(replace(SYNCHRONOUS, extra_members=4), world)(4)
    assert run.account.cancelled > 0
    assert world.num_acquired == world.num_released == run.account.started
    assert all(at_s >= run.progress.train_s for at_s in torn_s)  # only by the end of the run


@pytest.mark.parametrize("async_ratio", [0.0, 0.5, 1.0, 2.5])
def test_the_bias_against_the_slow_shows_in_the_meter(async_ratio: float) -> None:
    def is_slow(task: str) -> bool:
        return key_seed(task, "slow") % 4 == 0

    world = World(
        latency_s=lambda task, seed, turn: 100.0 if is_slow(task) and turn else 0.1,
        reward=lambda task, seed, action: 0.0 if is_slow(task) else 1.0,
    )
    run = ScriptedRun(replace(CONFIG, async_ratio=async_ratio, extra_groups=4), world, train_s=2.0)(30)

    buckets: Buckets = {}
    for (name, upper, outcome), count in run.recorder.outcomes.items():
        if name == "samples_by_duration_s":
            buckets.setdefault(upper, Counter())[outcome] += count
    buckets = in_order(buckets)

    def share(is_long: bool) -> float:
        numbers = {upper: number for upper, number in uncut(buckets).items() if (upper not in SHORT) == is_long}
        return sum(buckets.get(upper, Counter())["trained"] for upper in numbers) / sum(numbers.values())

    assert share(is_long=True) < 0.3 < 0.6 < share(is_long=False)
    hard = [fields for name, fields in run.recorder.events if name == "group_late" and is_slow(fields["task_id"])]
    assert hard
    without = ScriptedRun(replace(CONFIG, async_ratio=async_ratio), world, train_s=2.0)(30)
    assert {outcome for _, _, outcome in without.recorder.outcomes} == {"trained"}


def test_the_meter_counts_each_sample_in_its_bucket_of_each_dimension() -> None:
    shares = SampleShares()
    for _ in range(3):
        shares.count("trained", 0.9, 64, 0.0)
    shares.count("trained", 9.0, 65, 0.5)
    shares.count("late", 9.0, 65, 0.5)
    shares.count("late", 1e9, 0, None)
    recorder = CountingRecorder()
    shares.report(recorder)
    shares.report(recorder)  # what is new only: nothing
    assert recorder.outcomes == {
        ("samples_by_duration_s", "1", "trained"): 3,
        ("samples_by_duration_s", "16", "trained"): 1,
        ("samples_by_duration_s", "16", "late"): 1,
        ("samples_by_duration_s", "inf", "late"): 1,
        ("samples_by_length_tokens", "64", "trained"): 3,
        ("samples_by_length_tokens", "128", "trained"): 1,
        ("samples_by_length_tokens", "128", "late"): 1,
        ("samples_by_length_tokens", "1", "late"): 1,
        ("samples_by_difficulty", "0.2", "trained"): 3,
        ("samples_by_difficulty", "0.6", "trained"): 1,
        ("samples_by_difficulty", "0.6", "late"): 1,
        ("samples_by_difficulty", "unknown", "late"): 1,
    }


@pytest.mark.parametrize("async_ratio", [0.0, 1.0, 1.5])
def test_a_resumed_run_starts_again_what_was_in_flight_and_not_what_was_late(async_ratio: float) -> None:
    config = replace(CONFIG, async_ratio=async_ratio, extra_groups=2)
    world = World(latency_s=lambda task, seed, turn: 40.0 if key_seed(task) % 5 == 0 and turn else 0.1)
    first = ScriptedRun(config, world)(6)
    checkpoint = first.checkpoints[-1]
    trained = {group for groups in first.groups for group in groups}
    restart = set(checkpoint["restart"])
    dropped = set(range(checkpoint["next_group"])) - trained - restart
    assert late_groups(first) <= dropped  # the others were complete, and not needed
    assert not trained & restart
    second = ScriptedRun(config, world)
    second.progress = Progress.from_json(checkpoint)
    second(9)
    assert second.tasks[: len(restart)] == [f"task {group}" for group in sorted(restart)]
    assert not {f"task {group}" for group in dropped} & set(second.tasks)


def test_shares_have_few_buckets_whatever_they_count() -> None:
    shares = SampleShares()
    for number in range(2000):
        shares.count("trained", 1.1**number if number < 900 else 0.0, 3**number if number < 600 else 0, number / 2000)
    assert len(shares.counts) < 60
