"""One timer for all deadlines of a kind: each task is stopped at its own, and only then."""

import asyncio
from typing import Any, cast

import pytest

from rollcage.trainer.clock import VirtualTimeLoop, run_virtual
from rollcage.trainer.rollout.shared_timer import SharedTimer


async def work(timer: SharedTimer, begin_s: float, seconds: float) -> tuple[str, float]:
    """Return how a block of so many seconds ended, and when."""
    now = asyncio.get_running_loop().time
    await asyncio.sleep(begin_s)
    try:
        with timer.begin():
            await asyncio.sleep(seconds)
    except TimeoutError:
        return "timeout", now()
    return "done", now()


def test_every_block_ends_at_its_own_deadline() -> None:
    async def main() -> list[tuple[str, float]]:
        timer = SharedTimer(10)
        given = ((0, 3), (1, 60), (1, 60), (2, 9), (5, 60), (30, 10.5), (50, 1))
        return await asyncio.gather(*(work(timer, *each) for each in given))

    assert run_virtual(main) == [
        *(("done", 3), ("timeout", 11), ("timeout", 11), ("done", 11), ("timeout", 15), ("timeout", 40), ("done", 51)),
    ]


def test_a_thousand_open_blocks_have_one_timer_and_none_is_left_behind() -> None:
    async def main() -> None:
        timers = cast(Any, cast(VirtualTimeLoop, asyncio.get_running_loop()))._timers
        timer, over = SharedTimer(100), asyncio.Event()

        async def wait() -> None:
            with timer.begin():
                await over.wait()

        tasks = [asyncio.create_task(wait()) for _ in range(1000)]
        await asyncio.sleep(1)
        assert len(timers) == 1
        over.set()
        await asyncio.gather(*tasks)
        assert all(handle.cancelled() for *_, handle in timers)

    run_virtual(main)


def test_a_cancellation_from_elsewhere_stays_one_even_at_the_deadline() -> None:
    async def main() -> None:
        timer = SharedTimer(10)
        for at_s in (4, 10):
            task = asyncio.create_task(work(timer, 0, 60))
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(at_s, task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await task

    run_virtual(main)


def test_blocks_inside_each_other_tell_whose_deadline_it_was() -> None:
    async def main() -> tuple[bool, bool]:
        with pytest.raises(TimeoutError), SharedTimer(5).begin() as outer, SharedTimer(9).begin() as inner:
            await asyncio.sleep(60)
        return outer.expired, inner.expired

    assert run_virtual(main) == (True, False)
