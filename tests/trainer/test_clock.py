"""Virtual time: sleeps cost nothing, order is fixed, and a deadlock is an error with a place."""

import asyncio
import time

import pytest

from rollcage.trainer.clock import DeadlockError, run_virtual


def test_a_day_of_sleep_takes_no_time_and_the_clock_says_so():
    async def main() -> float:
        await asyncio.sleep(86_400 * 3)
        return asyncio.get_running_loop().time()

    start = time.perf_counter()
    assert run_virtual(main) == 86_400 * 3
    assert time.perf_counter() - start < 1


def test_exceptions_and_results_come_out_as_under_asyncio_run():
    async def fails() -> None:
        await asyncio.sleep(1)
        raise ValueError("seen")

    with pytest.raises(ValueError, match="seen"):
        run_virtual(fails)


def test_timers_of_one_instant_fire_in_the_order_they_were_set():
    order: list[int] = []

    async def sleeper(number: int) -> None:
        await asyncio.sleep(1.0)
        order.append(number)

    async def main() -> None:
        await asyncio.gather(*(sleeper(number) for number in range(500)))

    run_virtual(main)
    assert order == list(range(500))


def test_instants_that_differ_by_one_float_stay_apart_even_late():
    times: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(2.0**30)
        for step in (2, 1):
            loop.call_at(loop.time() + step * 2.0**-22, lambda: times.append(loop.time()))
        await asyncio.sleep(1)

    run_virtual(main, limit_s=2.0**31)
    assert times == [2.0**30 + 2.0**-22, 2.0**30 + 2 * 2.0**-22]


def test_timeout_fires_at_its_virtual_deadline():
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7.5):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(main) == 7.5


def test_cancelled_timers_do_not_hold_the_clock():
    async def main() -> float:
        loop = asyncio.get_running_loop()
        for _ in range(1000):
            loop.call_later(50, pytest.fail).cancel()
        await asyncio.sleep(1)
        return loop.time()

    assert run_virtual(main) == 1


def test_deadlock_names_the_waiting_task_and_its_place():
    async def wait_for_nobody() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(wait_for_nobody(), name="slot-7")

    with pytest.raises(DeadlockError, match=r"at 0 s: nothing is scheduled.*slot-7 at test_clock.py:\d+ in .*nobody"):
        run_virtual(main)


def test_deadlock_behind_a_heartbeat_ends_at_the_limit_and_still_cleans_up():
    cleaned: list[float] = []

    async def heartbeat() -> None:
        while True:
            await asyncio.sleep(10)

    async def main() -> None:
        beat = asyncio.create_task(heartbeat())
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(5)  # cleaning up may take (virtual) time
            cleaned.append(asyncio.get_running_loop().time())
            beat.cancel()

    with pytest.raises(DeadlockError, match="limit of 1000 s"):
        run_virtual(main, limit_s=1000)
    assert cleaned == [1015]


def test_threads_are_refused():
    async def main() -> None:
        await asyncio.to_thread(time.sleep, 0)

    with pytest.raises(RuntimeError, match="cannot wait for a thread"):
        run_virtual(main)


def test_two_runs_of_a_random_looking_program_interleave_equally():
    def trace() -> list[tuple[float, int]]:
        seen: list[tuple[float, int]] = []
        lock: asyncio.Lock

        async def worker(number: int) -> None:
            for turn in range(20):
                async with lock:
                    await asyncio.sleep(((number * 7919 + turn * 104_729) % 13) / 8)
                    seen.append((asyncio.get_running_loop().time(), number))
                await asyncio.sleep((number + turn) % 5)

        async def main() -> None:
            nonlocal lock
            lock = asyncio.Lock()
            async with asyncio.TaskGroup() as tasks:
                for number in range(10):
                    tasks.create_task(worker(number))

        run_virtual(main)
        return seen

    assert trace() == trace()
