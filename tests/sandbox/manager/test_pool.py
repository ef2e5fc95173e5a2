"""The warm pool: never above its target, members handed out once and alive, refilled, shrunk, drained."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from rollcage.sandbox.errors import SandboxError, StartFailed
from rollcage.sandbox.manager.pool import Pool
from rollcage.sandbox.types import SandboxSpec
from rollcage.trainer.clock import run_virtual

T = TypeVar("T")
SPEC = SandboxSpec()
OTHER = SandboxSpec(image="other")


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run in virtual time; what fails in a task that nobody waits for fails the test."""
    faults: list[object] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        return await main()

    result = run_virtual(watched)
    assert faults == []
    return result


class Manager:
    """A keeper that counts: who was started, who lives, and that no target is ever exceeded."""

    def __init__(self) -> None:
        self.start_s: Callable[[], float] = lambda: 1.0
        self.check_s: Callable[[], float] = lambda: 0.01
        self.drop_s: Callable[[], float] = lambda: 0.5
        self.fails: Callable[[], bool] = lambda: False
        self.error: Exception = StartFailed("never ready")
        self.live: set[str] = set()  # containers that are up
        self.exists: set[str] = set()  # containers, those that start and those that died and were not dropped included
        self.given: list[str] = []  # claimed: nobody's business but the claimer's
        self.starts_at: list[float] = []
        self.dropped: list[str] = []
        self.num_starting = self.max_starting = self.max_members = 0

    def note(self) -> None:
        self.max_starting = max(self.max_starting, self.num_starting)
        self.max_members = max(self.max_members, len(self.exists - set(self.given)))

    async def start(self, spec: SandboxSpec) -> str:
        name = f"{spec.image}-{len(self.starts_at)}"
        self.starts_at.append(asyncio.get_running_loop().time())
        self.exists.add(name)
        self.num_starting += 1
        self.note()
        try:
            await asyncio.sleep(self.start_s())
            if self.fails():
                raise self.error
        except BaseException:
            self.exists.discard(name)
            raise
        finally:
            self.num_starting -= 1
        self.live.add(name)
        return name

    async def check(self, sandbox_id: str) -> bool:
        await asyncio.sleep(self.check_s())
        return sandbox_id in self.live

    async def drop(self, sandbox_id: str) -> None:
        assert sandbox_id not in self.given, "dropped what was handed out"
        assert sandbox_id not in self.dropped, "dropped twice"
        self.dropped.append(sandbox_id)
        await asyncio.sleep(self.drop_s())
        self.exists.discard(sandbox_id)
        self.live.discard(sandbox_id)

    async def create(self, pool: Pool, spec: SandboxSpec = SPEC) -> str:
        """Create one as the manager does: from the pool, else a new one."""
        claimed = await pool.claim(spec)
        if claimed is None:
            claimed = f"cold-{len(self.given)}"
            self.live.add(claimed)
        assert claimed not in self.given, "handed out twice"
        self.given.append(claimed)
        return claimed


async def filled(manager: Manager, target: int = 3, **options: float) -> Pool:
    pool = Pool(manager, rng=random.Random(0), **options)  # type: ignore[arg-type]
    pool.set_target(SPEC, target)
    await asyncio.sleep(10)
    assert len(pool.idle(SPEC)) == target
    return pool


def test_S19_twenty_parallel_claims_of_a_pool_of_three_with_a_dead_member_give_twenty_distinct_healthy_ones():
    async def main() -> None:
        manager = Manager()
        pool = await filled(manager)
        dead = pool.idle(SPEC)[1]
        manager.live.discard(dead)
        claims = await asyncio.gather(*(manager.create(pool) for _ in range(20)))
        assert len(set(claims)) == 20
        assert dead not in claims
        assert set(claims) <= manager.live
        assert sum(not claim.startswith("cold") for claim in claims) == 2
        await asyncio.sleep(10)
        assert len(pool.idle(SPEC)) == 3
        assert manager.max_members == 3
        assert manager.exists - set(claims) == set(pool.idle(SPEC))
        await pool.close()

    run(main)


def test_S19_an_image_that_never_gets_ready_never_exceeds_the_target_and_is_tried_ever_more_rarely():
    async def main() -> None:
        manager = Manager()
        manager.fails = lambda: True
        pool = Pool(manager, max_starts=4, retry_s=1.0, max_retry_s=60.0, rng=random.Random(0))
        pool.set_target(SPEC, 3)
        await asyncio.sleep(3600)
        assert manager.max_members == 3
        assert pool.idle(SPEC) == []
        first, later = manager.starts_at[:3], manager.starts_at[3:]
        assert first == [0, 0, 0]
        pauses = [after - before - 1.0 for before, after in zip([0.0, *later], later, strict=False)]
        for number, pause_s in enumerate(pauses):  # one at a time, after 1, 2, 4, ... 60 s, a quarter more or less
            assert 0.75 <= pause_s / min(60, 2**number) <= 1.25
        assert 55 < len(manager.starts_at) < 85
        manager.fails = lambda: False
        await asyncio.sleep(120)
        assert len(pool.idle(SPEC)) == 3
        await pool.close()
        assert manager.exists == set()

    run(main)


def test_after_a_success_the_next_failure_starts_with_a_short_pause_again():
    async def main() -> None:
        manager = Manager()
        manager.fails = lambda: True
        pool = Pool(manager, rng=random.Random(0))
        pool.set_target(SPEC, 1)
        await asyncio.sleep(600)
        manager.fails = lambda: False
        await asyncio.sleep(100)
        manager.fails = lambda: len(manager.starts_at) == num_starts
        num_starts = len(manager.starts_at) + 1
        await manager.create(pool)
        await asyncio.sleep(3.5)  # 1 s that fails, a pause of at most 1.25 s, 1 s that succeeds
        assert len(pool.idle(SPEC)) == 1
        await pool.close()

    run(main)


def test_starts_run_side_by_side_but_not_more_than_allowed():
    async def main() -> None:
        manager = Manager()
        pool = Pool(manager, max_starts=4)
        pool.set_target(SPEC, 10)
        await asyncio.sleep(3.1)
        assert manager.starts_at == [0] * 4 + [1] * 4 + [2] * 2
        assert manager.max_starting == 4
        assert len(pool.idle(SPEC)) == 10
        await pool.close()

    run(main)


def test_the_oldest_member_goes_first_and_each_claim_is_replaced():
    async def main() -> None:
        manager = Manager()
        pool = await filled(manager)
        members = pool.idle(SPEC)
        assert [await pool.claim(SPEC) for _ in range(4)] == [*members, None]
        await asyncio.sleep(2)
        assert len(pool.idle(SPEC)) == 3
        assert pool.sizes() == {SPEC.pool_hash: (3, 3)}

    run(main)


def test_specifications_whose_containers_are_interchangeable_share_members_and_others_do_not():
    async def main() -> None:
        pool = await filled(Manager())
        assert await pool.claim(replace(SPEC, ttl_s=7, labels={"a": "b"})) is not None
        assert await pool.claim(OTHER) is None
        assert pool.idle(OTHER) == []

    run(main)


def test_a_member_that_hangs_when_checked_is_dropped_after_the_check_deadline_and_the_next_one_given():
    async def main() -> None:
        manager = Manager()
        pool = await filled(manager, check_timeout_s=2.0)
        times = iter([1e9, 0.01])
        manager.check_s = lambda: next(times)
        hung, fine, _ = pool.idle(SPEC)
        assert await pool.claim(SPEC) == fine
        assert asyncio.get_running_loop().time() == pytest.approx(12.01)
        assert manager.dropped == [hung]

    run(main)


def test_a_check_that_raises_a_sandbox_error_is_a_no():
    class Raising(Manager):
        async def check(self, sandbox_id: str) -> bool:
            raise SandboxError("gone")

    async def main() -> None:
        manager = Raising()
        pool = await filled(manager)
        assert await pool.claim(SPEC) is None
        await asyncio.sleep(0)
        assert len(manager.dropped) == 3

    run(main)


def test_a_dead_member_that_the_manager_reports_is_replaced_at_once_and_other_ids_mean_nothing():
    async def main() -> None:
        manager = Manager()
        pool = await filled(manager)
        dead = pool.idle(SPEC)[0]
        pool.forget("somebody else's")
        assert manager.dropped == []
        pool.forget(dead)
        pool.forget(dead)
        assert dead not in pool.idle(SPEC)
        await asyncio.sleep(2)
        assert manager.dropped == [dead]
        assert len(pool.idle(SPEC)) == 3
        assert manager.max_members == 3

    run(main)


def test_a_member_that_is_reported_dead_while_it_is_checked_is_not_handed_out():
    async def main() -> None:
        manager = Manager()
        pool = await filled(manager, target=1)
        (member,) = pool.idle(SPEC)
        manager.check_s = lambda: 1.0
        claim = asyncio.create_task(pool.claim(SPEC))
        await asyncio.sleep(0.5)
        pool.forget(member)
        assert await claim is None
        assert manager.dropped == [member]

    run(main)


@pytest.mark.parametrize("num_ticks", range(8))
def test_a_claim_that_is_cancelled_at_any_moment_leaves_the_member_in_the_pool(num_ticks: int):
    async def main() -> None:
        manager = Manager()
        manager.check_s = lambda: 0.0
        pool = await filled(manager)
        members = pool.idle(SPEC)
        claim = asyncio.create_task(pool.claim(SPEC))
        for _ in range(num_ticks):
            await asyncio.sleep(0)
        claim.cancel()
        (outcome,) = await asyncio.gather(claim, return_exceptions=True)
        if isinstance(outcome, asyncio.CancelledError):
            assert pool.idle(SPEC) == members
        else:
            assert [outcome, *pool.idle(SPEC)] == members
        assert manager.dropped == []
        await pool.close()

    run(main)


def test_a_lower_target_calls_starts_off_first_and_then_drops_the_oldest():
    async def main() -> None:
        manager = Manager()
        pool = await filled(manager)
        members = pool.idle(SPEC)
        pool.set_target(SPEC, 5)
        await asyncio.sleep(0.5)
        assert manager.num_starting == 2
        pool.set_target(SPEC, 3)
        await asyncio.sleep(0.1)
        assert manager.num_starting == 0
        assert manager.dropped == []
        pool.set_target(SPEC, 1)
        await asyncio.sleep(1)
        assert pool.idle(SPEC) == members[2:]
        assert manager.exists == set(members[2:])
        pool.set_target(SPEC, 0)
        await asyncio.sleep(1)
        assert manager.exists == set()
        assert pool.sizes() == {}

    run(main)


def test_members_of_an_earlier_manager_are_taken_in_up_to_the_target():
    async def main() -> None:
        manager = Manager()
        manager.live = {"a", "b", "c"}
        manager.exists = {"a", "b", "c"}
        pool = Pool(manager, adopt_s=60.0)
        pool.set_target(SPEC, 2)
        await asyncio.sleep(0.5)
        for name in "abc":
            pool.adopt(SPEC, name)
        await asyncio.sleep(5)
        assert pool.idle(SPEC) == ["b", "c"]
        assert manager.exists == {"b", "c"}
        pool.adopt(OTHER, "of no use")
        await asyncio.sleep(59)
        assert pool.idle(OTHER) == ["of no use"], "somebody may still set a target"
        await asyncio.sleep(5)
        assert "of no use" in manager.dropped
        assert SPEC.pool_hash in pool.sizes()
        assert OTHER.pool_hash not in pool.sizes()

    run(main)


def test_members_that_were_taken_in_before_the_target_is_set_are_kept_and_may_be_claimed_before():
    async def main() -> None:
        manager = Manager()
        manager.live = {"a", "b", "c", "d"}
        manager.exists = {"a", "b", "c", "d"}
        pool = Pool(manager)
        for name in "abcd":
            pool.adopt(SPEC, name)
        await asyncio.sleep(10)
        assert await pool.claim(SPEC) == "a"
        pool.set_target(SPEC, 2)
        await asyncio.sleep(5)
        assert pool.idle(SPEC) == ["c", "d"]
        assert manager.exists - {"a"} == {"c", "d"}
        await asyncio.sleep(100)
        assert pool.idle(SPEC) == ["c", "d"]
        await pool.close()

    run(main)


@pytest.mark.parametrize("after_s", [0.0, 0.5, 1.0, 1.5, 10.0])
def test_closing_leaves_nothing_of_the_pool_whenever_it_happens_and_may_be_repeated(after_s: float):
    async def main() -> None:
        manager = Manager()
        pool = Pool(manager, max_starts=2)
        pool.set_target(SPEC, 3)
        pool.set_target(OTHER, 2)
        await asyncio.sleep(after_s)
        await asyncio.gather(pool.close(), pool.close())
        await pool.close()
        assert manager.exists == set()
        num_starts = len(manager.starts_at)
        pool.set_target(SPEC, 5)
        await asyncio.sleep(100)
        assert len(manager.starts_at) == num_starts
        assert await pool.claim(SPEC) is None
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


def test_closing_without_draining_leaves_the_ready_ones_for_the_next_manager():
    async def main() -> None:
        manager = Manager()
        pool = await filled(manager)
        members = set(pool.idle(SPEC))
        pool.set_target(SPEC, 4)
        await asyncio.sleep(0.1)
        await pool.close(drain=False)
        assert manager.exists == manager.live == members
        assert await pool.claim(SPEC) is None

    run(main)


def test_a_member_that_is_checked_while_the_pool_closes_is_dropped_and_not_handed_out():
    async def main() -> None:
        manager = Manager()
        pool = await filled(manager)
        manager.check_s = lambda: 1.0
        claim = asyncio.create_task(pool.claim(SPEC))
        await asyncio.sleep(0.5)
        await pool.close()
        assert await claim is None
        assert manager.exists == set()

    run(main)


def test_a_keeper_that_hangs_does_not_hold_up_closing_beyond_its_deadline():
    async def main() -> None:
        manager = Manager()
        pool = await filled(manager)
        manager.drop_s = lambda: 1e9
        await pool.close(timeout_s=5)
        assert asyncio.get_running_loop().time() == 15
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run(main)


def test_a_fault_of_the_keeper_is_told_by_the_loop_and_does_not_stop_the_refill():
    async def main() -> list[str]:
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(repr(context["exception"])))
        manager = Manager()
        manager.error = ZeroDivisionError()
        manager.fails = lambda: len(manager.starts_at) == 1
        pool = Pool(manager)
        pool.set_target(SPEC, 1)
        await asyncio.sleep(5)
        assert len(pool.idle(SPEC)) == 1
        await pool.close()
        return told

    assert run_virtual(main) == ["ZeroDivisionError()"]


@pytest.mark.parametrize("seed", range(20))
def test_random_claims_deaths_and_failures_never_exceed_the_target_nor_give_out_one_twice_or_dead(seed: int):
    async def main() -> None:
        rng = random.Random(seed)
        manager = Manager()
        manager.start_s = lambda: rng.uniform(0, 2)
        manager.check_s = lambda: rng.choice([0.0, 0.01, 0.3, 3.0])
        manager.drop_s = lambda: rng.uniform(0, 2)
        manager.fails = lambda: rng.random() < 0.3
        target = rng.randint(1, 6)
        pool = Pool(manager, max_starts=rng.randint(1, 4), retry_s=0.5, max_retry_s=4.0, rng=rng)
        pool.set_target(SPEC, target)
        num_warm = 0

        async def death() -> None:
            while True:
                await asyncio.sleep(rng.uniform(0, 2))
                idle = pool.idle(SPEC)
                if idle:
                    dead = rng.choice(idle)
                    manager.live.discard(dead)
                    if rng.random() < 0.5:
                        pool.forget(dead)

        async def user() -> None:
            nonlocal num_warm
            await asyncio.sleep(rng.uniform(0, 100))
            try:
                async with asyncio.timeout(rng.choice([0.005, 0.3, 100])):
                    claimed = await manager.create(pool)
            except TimeoutError:
                return
            assert claimed in manager.live
            num_warm += not claimed.startswith("cold")

        killer = asyncio.create_task(death())
        await asyncio.gather(*(user() for _ in range(100)))
        killer.cancel()
        await asyncio.sleep(60)
        assert manager.max_members <= target
        assert len(pool.idle(SPEC)) == target
        assert num_warm > 2
        assert manager.exists - set(manager.given) == set(pool.idle(SPEC))
        await pool.close()
        assert manager.exists <= set(manager.given)
        assert asyncio.all_tasks() - {asyncio.current_task()} <= {killer}

    run(main)
