"""Who runs when: lockstep and queue scheduling, replication, environments that hold no generation slot, starvation."""

import asyncio
import sys
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
from tests.trainer.scripted_run import ScriptedRun, World, numbers

from rollcage.trainer.engines.scripted import Line
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.seeding import key_seed
from rollcage.trainer.types import Request

CONFIG = RolloutConfig(
    num_groups=4, group_size=4, num_slots=64, env_deadline_s=50, turn_deadline_s=100, episode_deadline_s=400
)
SYNC = replace(CONFIG, mode="sync", async_ratio=0.0)


def three_turns(**fields: Any) -> World:
    return World(turns=lambda task: 1 + key_seed(task) % 3, **fields)


@pytest.mark.parametrize("change", [{}, {"num_slots": 5}, {"replicate": False}, {"interrupt": "abort"}], ids=str)
def test_t4_batches_at_ratio_0_are_bit_identical_to_the_synchronous_loop_s(change: dict[str, Any]) -> None:
    def latency_s(task: str, seed: int, turn: int) -> float:
        return key_seed(task, seed, turn) % 80 / 10

    synchronous = ScriptedRun(SYNC, three_turns(latency_s=latency_s))(5)
    queued = ScriptedRun(replace(CONFIG, async_ratio=0.0, **change), three_turns(latency_s=latency_s), num_engines=3)(5)
    assert len(queued.batches) == 5
    for one, other in zip(synchronous.batches, queued.batches, strict=True):
        for name in type(one).__dataclass_fields__:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


def test_sync_waits_for_the_slowest_in_every_turn_and_async_for_no_one() -> None:
    # two episodes of two turns: 1 s and 9 s, 9 s and 1 s; no latency, no training time
    def script(request: Request, version: int) -> Line:
        member, turn = map(int, request.id.partition(".")[2].split("/"))
        return Line([2], first_token_s=1.0 if member == turn else 9.0)

    world = World(turns=lambda task: 2, latency_s=lambda task, seed, turn: 0.0)
    config = replace(CONFIG, num_groups=1, group_size=2, num_slots=2, async_ratio=0.0)

    def seconds(config: RolloutConfig) -> float:
        return ScriptedRun(config, world, script=script, train_s=0.0)(1).metrics[0]["time/wait_s"]

    assert seconds(config) == 10
    assert seconds(replace(config, mode="sync")) == 18


def test_sync_starts_the_next_round_only_when_the_last_one_is_over() -> None:
    starts: list[float] = []

    def latency_s(task: str, seed: int, turn: int) -> float:
        if turn == 0:
            starts.append(asyncio.get_running_loop().time())
        return 30.0 if task == "task 1" else 1.0

    # task 0 is filtered, and its replacement waits for slow task 1, where queue scheduling would start it at once
    world = World(latency_s=latency_s, reward=lambda task, seed, action: 0.0 if task == "task 0" else seed % 997)
    config = replace(SYNC, group_filter="std")
    run = ScriptedRun(config, world)(1)
    assert run.account.filtered == 4
    assert {round(start) for start in starts[:16]} == {0}
    assert len(starts) == 20
    assert min(starts[16:]) > 60
    starts.clear()
    ScriptedRun(replace(config, mode="async"), world)(1)
    assert min(starts[16:]) < 10


def test_an_episode_that_fails_in_lockstep_holds_nobody_up_and_is_played_again_in_the_next_round() -> None:
    from rollcage.envs.placements.base import EnvDied

    num_faults = 0

    def fault(task: str, seed: int, turn: int) -> Exception | None:
        nonlocal num_faults
        if task == "task 2" and turn == 1 and num_faults < 2:
            num_faults += 1
            return EnvDied("gone")
        return None

    run = ScriptedRun(SYNC, three_turns(fault=fault))(2)
    assert run.account.failed == {"infra/env_died": 2}
    assert run.groups == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(run.batches[0].returns) == 16


def test_an_episode_that_waits_for_its_environment_holds_no_generation_slot() -> None:
    # one generation slot, 16 episodes of three turns, 1 s of generation a turn and 20 s of environment
    world = World(turns=lambda task: 3, latency_s=lambda task, seed, turn: 20.0 if turn else 0.0)
    config = replace(CONFIG, async_ratio=0.0)
    run = ScriptedRun(config, world, script=lambda request, version: Line([2], 1.0), slots_per_engine=1)(1)
    # the slot is busy for 48 s; what is left is a wait for the environment or two. One that held it took 16 x 63 s.
    assert 48 <= run.metrics[0]["time/wait_s"] <= 48 + 2 * 21


def test_replicated_prompts_spread_over_the_replicas_and_others_stay_together() -> None:
    def homes(run: ScriptedRun) -> list[int]:
        found: dict[str, set[int]] = {}
        for request_id, replica in run.served.items():
            found.setdefault(request_id.split(".")[0], set()).add(replica)
        return [len(replicas) for replicas in found.values()]

    config = replace(CONFIG, async_ratio=0.0)
    assert set(homes(ScriptedRun(config, three_turns(), num_engines=4)(2))) == {4}
    run = ScriptedRun(replace(config, replicate=False), three_turns(), num_engines=4)(2)
    assert set(homes(run)) == {1}
    assert set(run.served.values()) == {0, 1, 2, 3}  # groups still spread


def test_one_long_response_of_a_prompt_that_is_one_entry_holds_the_slots_of_all_its_siblings() -> None:
    def script(request: Request, version: int) -> Line:
        return Line([2], first_token_s=50.0 if request.id.startswith("0.0/") else 1.0)

    def seconds(replicate: bool) -> float:
        config = replace(CONFIG, num_groups=8, num_slots=4, async_ratio=0.0, replicate=replicate)
        world = World(latency_s=lambda task, seed, turn: 0.0)
        return ScriptedRun(config, world, script=script)(1).metrics[0]["time/wait_s"]

    assert seconds(True) == 50  # three slots do the other 31 in 11 s meanwhile
    assert seconds(False) == 50 + 7


def test_a_prompt_that_is_one_entry_starts_as_a_whole_and_never_takes_more_slots_than_there_are() -> None:
    world = three_turns()
    ScriptedRun(replace(CONFIG, num_slots=6, replicate=False), world)(3)
    assert world.most_live == 4


@pytest.mark.parametrize("async_ratio", [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.25, 4.0])
@pytest.mark.parametrize("extra_groups", [0, 3])
def test_the_share_of_the_oldest_samples_is_the_fraction_of_the_ratio_even_among_stragglers(
    async_ratio: float, extra_groups: int
) -> None:
    def latency_s(task: str, seed: int, turn: int) -> float:
        return 40.0 if key_seed(task, "slow") % 5 == 0 else key_seed(task, seed) % 30 / 10

    config = replace(CONFIG, async_ratio=async_ratio, extra_groups=extra_groups)
    run = ScriptedRun(config, World(latency_s=latency_s), train_s=3.0)(25)
    bound = int(-(-async_ratio // 1))
    for staleness in run.staleness():
        assert max(staleness) <= bound
        if async_ratio % 1:
            assert staleness.count(bound) <= async_ratio % 1 * config.num_groups
    if async_ratio >= 1:
        assert bound in {age for staleness in run.staleness() for age in staleness}


@pytest.mark.parametrize("async_ratio", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("interrupt", ["continue", "wait", "abort"])
def test_without_redundancy_no_task_is_lost_for_being_slow(async_ratio: float, interrupt: Any) -> None:
    def latency_s(task: str, seed: int, turn: int) -> float:
        return 49.0 if key_seed(task, "slow") % 4 == 0 else 0.1

    def script(request: Request, version: int) -> Line:
        slow = key_seed(request.group, "long") % 6 == 0
        return Line([2] * (40 if slow else 2), token_s=1.0)

    config = replace(CONFIG, async_ratio=async_ratio, interrupt=interrupt, episode_deadline_s=1000)
    run = ScriptedRun(config, three_turns(latency_s=latency_s), script=script)(12)
    assert run.account.failed.total() == 0
    trained = sorted(group for groups in run.groups for group in groups)
    # whatever was overtaken comes in time: after 12 updates all but the last few are trained on, in order of age
    assert trained[: 4 * (12 - int(-(-async_ratio // 1)))] == list(range(4 * (12 - int(-(-async_ratio // 1)))))
    shares = run.recorder.counts
    assert shares["samples_by_duration_s"] == run.account.trained
    assert run.progress.account.cancelled == run.account.started - run.account.trained


def test_what_an_episode_costs_does_not_grow_with_what_is_in_flight() -> None:
    def steps(num_groups: int, num_updates: int) -> float:
        """Return lines of Python an episode, turns of loops counted: what a profiler's clock would blur."""
        config = replace(CONFIG, num_groups=num_groups, num_slots=8 * num_groups, extra_groups=2, extra_members=1)
        num = 0

        def trace(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal num
            num += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            run = ScriptedRun(config, num_engines=max(1, num_groups // 4), slots_per_engine=32)(num_updates)
        finally:
            sys.settrace(before)
        return num / run.account.started

    # ten times as many in flight, on ten times as many replicas: one look at each of them an event would show
    # 25 times as many in flight, on 25 times as many replicas: a look at each of them at every event would show
    assert steps(100, 1) < 1.2 * steps(4, 25)


def test_seeds_and_numbers_of_the_harness_vary() -> None:
    lines = {tuple(numbers(Request(str(i), [0], None, seed=i), 0).token_ids) for i in range(20)}  # type: ignore[arg-type]
    assert len(lines) > 10
