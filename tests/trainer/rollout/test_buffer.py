"""The sample buffer: what may start, and what an update takes."""

import asyncio

import pytest

from rollcage.trainer.clock import run_virtual
from rollcage.trainer.rollout.buffer import SampleBuffer
from rollcage.trainer.types import Group, Trajectory


def group(group_id: int, start_version: int, size: int = 2) -> Group:
    members = [Trajectory((group_id, member), f"task {group_id}", seed=0) for member in range(size)]
    return Group(group_id, f"task {group_id}", members, start_version)


def admit_all(buffer: SampleBuffer, first: int) -> list[int]:
    """Admit groups until the buffer says stop; returns their ids."""
    ids = []
    while buffer.may_admit():
        ids.append(first + len(ids))
        buffer.admit(ids[-1])
    return ids


@pytest.mark.parametrize(("async_ratio", "at_once"), [(0.0, 4), (0.25, 5), (0.5, 6), (1.0, 8), (1.5, 10), (2.0, 12)])
def test_capacity_is_one_plus_alpha_batches(async_ratio: float, at_once: int) -> None:
    buffer = SampleBuffer(num_groups=4, async_ratio=async_ratio)
    assert len(admit_all(buffer, 0)) == at_once


def test_synchronous_training_admits_nothing_while_a_batch_is_trained() -> None:
    async def main() -> None:
        buffer = SampleBuffer(num_groups=2, async_ratio=0.0)
        for group_id in admit_all(buffer, 0):
            buffer.complete(group(group_id, 0))
        assert len(await buffer.take()) == 2
        assert not buffer.may_admit()  # version 0 is being updated: what starts now would be stale
        buffer.publish(1)
        assert len(admit_all(buffer, 2)) == 2

    run_virtual(main)


def test_a_straggler_is_overtaken_while_that_harms_nothing_then_waited_for() -> None:
    async def main() -> None:
        buffer = SampleBuffer(num_groups=2, async_ratio=1.0)
        admit_all(buffer, 0)  # groups 0 to 3, all to be trained on no later than at version 1
        for group_id in (1, 2, 3):
            buffer.complete(group(group_id, 0))
        assert [g.id for g in await buffer.take()] == [1, 2]  # 0 is still under way, and is overtaken
        buffer.publish(1)
        for group_id in admit_all(buffer, 4):
            buffer.complete(group(group_id, 1))
        # 3, 4 and 5 are ready, but group 0 would be too old for the update after this one: it must be waited for
        waiting = asyncio.create_task(buffer.take())
        await asyncio.sleep(10)
        assert not waiting.done()
        buffer.complete(group(0, 0))
        assert [g.id for g in await waiting] == [0, 3]

    run_virtual(main)


def test_a_dropped_group_frees_its_place() -> None:
    buffer = SampleBuffer(num_groups=2, async_ratio=0.0)
    ids = admit_all(buffer, 0)
    buffer.drop(ids[0])
    assert buffer.may_admit()
    assert buffer.outstanding == ids[1:]


def test_groups_that_are_too_old_are_evicted_and_returned() -> None:
    buffer = SampleBuffer(num_groups=2, async_ratio=1.0, policy_version=3)
    for group_id, version in ((0, 1), (1, 2), (2, 3)):
        buffer.admit(group_id)
        buffer.complete(group(group_id, version))
    assert [g.id for g in buffer.evict_stale()] == [0]
    assert buffer.outstanding == [1, 2]
