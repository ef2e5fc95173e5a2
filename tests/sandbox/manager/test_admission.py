"""Admission: fair turns, no overcommit, no lost wake-up, no starvation, no trace of those who left."""

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest

from rollcage.sandbox.errors import (
    BadSpec,
    DiskPressure,
    HostUnavailable,
    Overloaded,
    SandboxError,
    SandboxUnavailable,
)
from rollcage.sandbox.manager.admission import Admission
from rollcage.sandbox.manager.placement import HostLimits, choose_host
from rollcage.sandbox.manager.places import Place
from rollcage.sandbox.types import MIB, HostInfo, SandboxSpec
from rollcage.trainer.clock import run_virtual

GIB = 1024 * MIB
SMALL = SandboxSpec(cpus=1.0, memory_bytes=GIB)
LIMITS = HostLimits(max_sandboxes=100, max_starts=100, cpu_overcommit=100.0, memory_share=1.0)
FAR = 1e5
"""A deadline that no test reaches."""


def host(name: str = "a", memory_gib: int = 4, **changes: object) -> HostInfo:
    return replace(HostInfo(name, "", "open", num_cpus=8, memory_bytes=memory_gib * GIB), **changes)


async def settled() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def empty(admission: Admission, *hosts: str) -> bool:
    """Whether nothing is promised, not even a start, and nobody waits."""
    seen = [admission.reserved(host(name)) for name in hosts or ("a",)]
    return admission.num_waiting == 0 and all(
        each.num_sandboxes == 0
        and each.reserved_cpus == 0
        and each.reserved_memory_bytes == 0
        and admission._ledger.num_starts(each.name) == 0
        for each in seen
    )


def test_a_place_is_booked_at_once_and_given_back_once():
    async def main() -> None:
        admission = Admission(lambda: [host()], LIMITS)
        place = await admission.admit(SMALL, deadline=FAR)
        seen = admission.reserved(host())
        assert (place.host, seen.num_sandboxes, seen.reserved_cpus, seen.reserved_memory_bytes) == ("a", 1, 1.0, GIB)
        for _ in range(2):
            place.started()
            place.release()
        assert empty(admission)

    run_virtual(main)


def test_shares_that_floats_cannot_hold_add_up_to_nothing_in_the_end():
    async def main() -> None:
        admission = Admission(lambda: [host(memory_gib=64)], LIMITS)
        spec = replace(SMALL, cpus=0.1, memory_bytes=MIB)
        places = [await admission.admit(spec, deadline=FAR) for _ in range(99)]
        assert admission.reserved(host()).reserved_cpus == 9.9
        for place in places:
            place.release()
        assert empty(admission)

    run_virtual(main)


def test_overload_queues_and_each_release_lets_the_next_one_in():
    async def main() -> None:
        admission = Admission(lambda: [host(memory_gib=2)], LIMITS)
        waiting = [asyncio.create_task(admission.admit(SMALL, deadline=FAR)) for _ in range(5)]
        await settled()
        for number in range(5):
            assert [task.done() for task in waiting] == [True] * min(5, number + 2) + [False] * max(0, 3 - number)
            waiting[number].result().release()
            await settled()
        assert empty(admission)

    run_virtual(main)


def test_parallel_starts_are_bounded_per_host_and_a_start_that_ends_lets_the_next_one_in():
    async def main() -> None:
        admission = Admission(lambda: [host("a"), host("b")], replace(LIMITS, max_starts=2))
        waiting = [asyncio.create_task(admission.admit(SMALL, deadline=FAR)) for _ in range(6)]
        await settled()
        assert Counter(task.result().host for task in waiting if task.done()) == {"a": 2, "b": 2}
        waiting[0].result().started()
        await settled()
        assert [task.done() for task in waiting] == [True] * 5 + [False]
        waiting[1].result().release()  # a start that failed gives back both
        await settled()
        assert all(task.done() for task in waiting)

    run_virtual(main)


def test_what_can_never_fit_is_told_at_once_though_others_wait():
    async def main() -> None:
        admission = Admission(lambda: [host(memory_gib=1)], LIMITS)
        await admission.admit(SMALL, deadline=FAR)
        waiting = asyncio.create_task(admission.admit(SMALL, deadline=FAR))
        await settled()
        with pytest.raises(BadSpec):
            await admission.admit(replace(SMALL, memory_bytes=2 * GIB), deadline=FAR)
        assert asyncio.get_running_loop().time() == 0
        assert admission.num_waiting == 1
        waiting.cancel()
        await settled()
        assert admission.num_waiting == 0

    run_virtual(main)


def test_a_deadline_without_room_is_overloaded_then_and_leaves_no_trace():
    async def main() -> None:
        admission = Admission(lambda: [host(memory_gib=1)], LIMITS)
        place = await admission.admit(SMALL, deadline=FAR)
        with pytest.raises(Overloaded, match="1024 MiB of 1024 MiB"):
            await admission.admit(SMALL, deadline=7.0)
        assert asyncio.get_running_loop().time() == 7.0
        place.release()
        assert empty(admission)

    run_virtual(main)


def test_one_whose_turn_did_not_come_is_overloaded_too():
    async def main() -> None:
        admission = Admission(lambda: [host(memory_gib=2)], LIMITS)
        await admission.admit(SMALL, deadline=FAR)
        first = asyncio.create_task(admission.admit(replace(SMALL, memory_bytes=2 * GIB), deadline=FAR))
        await settled()
        with pytest.raises(Overloaded, match="turn"):  # it would fit, but its owner's first one does not
            await admission.admit(SMALL, deadline=1.0)
        first.cancel()

    run_virtual(main)


def test_one_that_leaves_from_the_middle_of_its_owners_queue_counts_no_more_at_once():
    async def main() -> None:
        admission = Admission(lambda: [host(memory_gib=1)], LIMITS)
        place = await admission.admit(SMALL, deadline=FAR)
        waiting = [asyncio.create_task(admission.admit(SMALL, deadline=FAR)) for _ in range(3)]
        await settled()
        waiting[1].cancel()
        await settled()
        assert admission.num_waiting == 2
        place.release()
        (await waiting[0]).release()
        (await waiting[2]).release()
        assert empty(admission)

    run_virtual(main)


def test_hosts_that_may_come_back_are_waited_for_and_full_disks_are_told_at_once():
    async def main() -> None:
        hosts = [host(condition="quarantined")]
        admission = Admission(lambda: hosts, LIMITS)
        with pytest.raises(HostUnavailable, match="quarantined"):
            await admission.admit(SMALL, deadline=5.0)
        waiting = asyncio.create_task(admission.admit(SMALL, deadline=FAR))
        second = asyncio.create_task(admission.admit(SMALL, deadline=FAR))
        await settled()
        hosts[0] = host(memory_gib=1)
        admission.wake()
        assert (await waiting).host == "a"
        hosts[0] = host(condition="full")
        admission.wake()
        with pytest.raises(DiskPressure):
            await second
        with pytest.raises(DiskPressure):
            await admission.admit(SMALL, deadline=FAR)
        assert asyncio.get_running_loop().time() == 5.0

    run_virtual(main)


def test_a_snapshot_goes_to_its_own_host_only_and_whoever_waits_hears_why():
    async def main() -> None:
        admission = Admission(lambda: [host("a"), host("b", memory_gib=1)], LIMITS)
        heard: list[str] = []
        assert (await admission.admit(SMALL, deadline=FAR, only={"b"}, on_wait=heard.append)).host == "b"
        assert heard == []
        with pytest.raises(Overloaded):
            await admission.admit(SMALL, deadline=1.0, only={"b"}, on_wait=heard.append)
        assert len(heard) == 1
        assert "memory are promised" in heard[0]

    run_virtual(main)


def test_adopted_sandboxes_count_even_beyond_the_limits_and_hold_up_new_ones():
    async def main() -> None:
        admission = Admission(lambda: [host(memory_gib=2)], LIMITS)
        adopted = [admission.adopt("a", SMALL) for _ in range(3)]
        assert admission.reserved(host()).reserved_memory_bytes == 3 * GIB
        waiting = asyncio.create_task(admission.admit(SMALL, deadline=FAR))
        for place in adopted[:2]:
            await settled()
            assert not waiting.done()
            place.release()
        (await waiting).release()
        adopted[2].release()
        assert empty(admission)

    run_virtual(main)


def test_owners_take_turns_however_many_one_of_them_asks_for():
    async def main() -> list[str]:
        admission = Admission(lambda: [host(memory_gib=1)], LIMITS)
        order: list[str] = []

        async def use(owner: str) -> None:
            place = await admission.admit(SMALL, deadline=FAR, owner=owner)
            order.append(owner)
            await asyncio.sleep(1)
            place.release()

        async with asyncio.TaskGroup() as uses:
            for owner, count in (("greedy", 50), ("b", 3), ("c", 2)):
                for _ in range(count):
                    uses.create_task(use(owner))
        assert empty(admission)
        return order

    assert run_virtual(main)[:10] == ["greedy", "greedy", "b", "c", "greedy", "b", "c", "greedy", "b", "greedy"]


def test_a_large_one_is_passed_only_so_often_by_small_ones_that_never_cease():
    async def main() -> int:
        admission = Admission(lambda: [host(memory_gib=4)], LIMITS, max_passes=6)
        num_passed = 0
        goes_on = True

        async def small(number: int) -> None:
            nonlocal num_passed
            while goes_on:
                place = await admission.admit(SMALL, deadline=FAR, owner=f"small {number}")
                num_passed += not large.done()
                await asyncio.sleep(1 + number / 10)
                place.release()

        large = asyncio.get_running_loop().create_future()
        smalls = [asyncio.create_task(small(number)) for number in range(8)]
        await asyncio.sleep(20)
        num_passed = 0
        place = await admission.admit(replace(SMALL, memory_bytes=4 * GIB), deadline=FAR, owner="large")
        large.set_result(None)
        goes_on = False
        place.release()
        await asyncio.gather(*smalls)
        assert empty(admission)
        return num_passed

    assert run_virtual(main) == 4 + 6  # four others were waiting when it came; those that come later pass six times


def test_only_one_host_is_kept_for_a_large_one_and_the_others_go_on():
    async def main() -> None:
        admission = Admission(lambda: [host("a", 2), host("b", 2)], LIMITS, max_passes=0)
        held = [await admission.admit(SMALL, deadline=FAR) for _ in range(4)]
        large = asyncio.create_task(admission.admit(replace(SMALL, memory_bytes=2 * GIB), deadline=FAR, owner="large"))
        await settled()
        small = asyncio.create_task(admission.admit(SMALL, deadline=FAR, owner="small"))
        await settled()
        for place in [place for place in held if place.host == "b"]:
            place.release()
        assert (await small).host == "b"
        await settled()
        assert not large.done()  # "a" is kept for it, and still full
        for place in [place for place in held if place.host == "a"]:
            place.release()
        assert (await large).host == "a"

    run_virtual(main)


def test_one_that_waits_for_one_host_does_not_keep_the_others():
    async def main() -> None:
        admission = Admission(lambda: [host("a", 1), host("b", 8)], LIMITS, max_passes=0)
        (await admission.admit(SMALL, deadline=FAR, only={"a"})).started()
        tied = asyncio.create_task(admission.admit(SMALL, deadline=FAR, only={"a"}, owner="tied"))
        await settled()
        others = [await admission.admit(SMALL, deadline=1.0, owner="other") for _ in range(8)]
        assert {place.host for place in others} == {"b"}
        tied.cancel()

    run_virtual(main)


def test_new_lives_go_before_new_sandboxes_and_count_as_starts():
    async def main() -> None:
        admission = Admission(lambda: [host(memory_gib=64)], replace(LIMITS, max_starts=1))
        old = admission.adopt("a", SMALL)
        first = await admission.admit(SMALL, deadline=FAR)
        second = asyncio.create_task(admission.admit(SMALL, deadline=FAR))
        await settled()
        restart = asyncio.create_task(admission.restart(old, deadline=FAR))
        await settled()
        assert not second.done()
        assert not restart.done()
        first.started()
        await restart
        await settled()
        assert not second.done()
        old.started()
        (await second).release()
        first.release()
        old.release()
        assert empty(admission)

    run_virtual(main)


def test_a_new_life_that_gets_no_start_by_its_deadline_leaves_no_trace():
    async def main() -> None:
        admission = Admission(lambda: [host(memory_gib=64)], replace(LIMITS, max_starts=1))
        busy = await admission.admit(SMALL, deadline=FAR)
        old = admission.adopt("a", SMALL)
        with pytest.raises(Overloaded, match="'a'"):
            await admission.restart(old, deadline=3.0)
        assert asyncio.get_running_loop().time() == 3.0
        busy.release()
        (await admission.admit(SMALL, deadline=FAR)).release()
        old.release()
        assert empty(admission)

    run_virtual(main)


def test_a_sandbox_that_is_removed_while_it_waits_for_a_new_life_hears_so():
    async def main() -> None:
        admission = Admission(lambda: [host()], replace(LIMITS, max_starts=1))
        await admission.admit(SMALL, deadline=FAR)
        old = admission.adopt("a", SMALL)
        restart = asyncio.create_task(admission.restart(old, deadline=FAR))
        await settled()
        old.release()
        with pytest.raises(SandboxUnavailable):
            await restart
        with pytest.raises(SandboxUnavailable):
            await admission.restart(old, deadline=FAR)

    run_virtual(main)


def test_closing_ends_every_wait_and_places_may_still_be_given_back():
    async def main() -> None:
        admission = Admission(lambda: [host(memory_gib=1)], replace(LIMITS, max_starts=1))
        place = await admission.admit(SMALL, deadline=FAR)
        old = admission.adopt("a", SMALL)
        waits = [
            asyncio.create_task(admission.admit(SMALL, deadline=FAR)),
            asyncio.create_task(admission.restart(old, deadline=FAR)),
        ]
        await settled()
        admission.close()
        admission.close()
        for wait in waits:
            with pytest.raises(HostUnavailable, match="closing"):
                await wait
        with pytest.raises(HostUnavailable, match="closing"):
            await admission.admit(SMALL, deadline=FAR)
        with pytest.raises(HostUnavailable, match="closing"):
            await admission.restart(old, deadline=FAR)
        place.release()
        old.release()
        assert empty(admission)

    run_virtual(main)


@pytest.mark.parametrize("num_ticks", range(12))
@pytest.mark.parametrize("order", ["release first", "cancel first", "deadline"])
@pytest.mark.parametrize("kind", ["admit", "restart"])
def test_one_that_leaves_at_any_moment_gives_back_what_it_got_and_lets_the_next_one_in(
    kind: str, order: str, num_ticks: int
):
    """The wait is ended so many turns of the event loop before or after it is granted; both may be in one turn."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        admission = Admission(lambda: [host(memory_gib=2)], replace(LIMITS, max_starts=1))
        old, busy = admission.adopt("a", SMALL), await admission.admit(SMALL, deadline=FAR)
        deadline = 10.0 if order == "deadline" else FAR

        async def leaving() -> Place:
            if kind == "admit":
                return await admission.admit(SMALL, deadline=deadline)
            await admission.restart(old, deadline=deadline)
            return old

        leaver = asyncio.create_task(leaving())
        await settled()
        follower = asyncio.create_task(admission.admit(SMALL, deadline=FAR))
        await settled()

        async def release() -> None:
            (busy.release if kind == "admit" else busy.started)()

        async def leave() -> None:
            if order == "deadline":
                await asyncio.sleep(10.0 - loop.time())
            else:
                leaver.cancel()

        first, then = (release, leave) if order == "release first" else (leave, release)
        await first()
        for _ in range(num_ticks):
            await asyncio.sleep(0)
        await then()
        (outcome,) = await asyncio.gather(leaver, return_exceptions=True)
        if isinstance(outcome, Place):  # it was granted and had left before the end came
            outcome.release()
        else:
            assert isinstance(outcome, asyncio.CancelledError | Overloaded)
        if kind == "restart":
            busy.release()
        (await follower).release()
        old.release()
        assert empty(admission)

    run_virtual(main)


class Town:
    """Random users of one `Admission`, and a ledger of the test's own that checks every grant."""

    def __init__(self, seed: int, *, max_passes: int) -> None:
        self.rng = rng = random.Random(seed)
        self.limits = HostLimits(rng.randint(2, 12), rng.randint(1, 4), rng.choice([1.0, 2.0]), rng.choice([0.8, 1.0]))
        self.hosts = {
            name: host(name, rng.randint(2, 8), num_cpus=rng.randint(2, 6)) for name in "abc"[: rng.randint(1, 3)]
        }
        self.admission = Admission(lambda: list(self.hosts.values()), self.limits, max_passes=max_passes)
        self.live: dict[Place, bool] = {}
        self.queues: defaultdict[str, list[tuple[int, SandboxSpec]]] = defaultdict(list)
        self.outcomes: Counter[str] = Counter()

    def holds(self, name: str) -> tuple[HostInfo, int]:
        """The host with what is promised there, and its starts, by the test's own count."""
        here = [place for place in self.live if place.host == name]
        counted = replace(
            self.hosts[name],
            num_sandboxes=len(here),
            reserved_cpus=sum(place.spec.cpus for place in here),
            reserved_memory_bytes=sum(place.spec.memory_bytes for place in here),
        )
        return counted, sum(self.live[place] for place in here)

    def check_no_overcommit(self) -> None:
        for name in self.hosts:
            counted, num_starts = self.holds(name)
            assert counted.num_sandboxes <= self.limits.max_sandboxes
            assert num_starts <= self.limits.max_starts
            assert counted.reserved_memory_bytes <= counted.memory_bytes * self.limits.memory_share
            assert counted.reserved_cpus <= counted.num_cpus * self.limits.cpu_overcommit + 1e-6

    def check_nobody_waits_in_vain(self) -> None:
        counted = [self.holds(name) for name in self.hosts]
        starting = {each.name: num_starts for each, num_starts in counted}
        for queue in self.queues.values():
            if queue:
                with pytest.raises(SandboxError):
                    choose_host(queue[0][1], [each for each, _ in counted], self.limits, num_starting=starting)

    async def user(self, number: int) -> None:
        rng, owner = self.rng, self.rng.choice(["x", "y", "z"])
        spec = replace(SMALL, cpus=rng.choice([0.1, 0.5, 1.0, 2.0]), memory_bytes=rng.choice([GIB // 4, GIB, 2 * GIB]))
        await asyncio.sleep(rng.uniform(0, 60))
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        if task is not None and rng.random() < 0.3:
            loop.call_later(rng.choice([0.0, 0.01, 0.5, 5.0, 15.0]), task.cancel)
        patience_s = rng.choice([0.5, 5.0, 500.0])
        queue, entry = self.queues[owner], (number, spec)
        queue.append(entry)
        try:
            place = await self.admission.admit(spec, deadline=loop.time() + patience_s, owner=owner)
        except SandboxError as error:
            queue.remove(entry)
            self.outcomes[type(error).__name__] += 1
            self.outcomes["starved"] += patience_s == 500.0 and not isinstance(error, BadSpec)
            return
        except asyncio.CancelledError:
            queue.remove(entry)
            self.outcomes["cancelled"] += 1
            raise
        assert queue[0] == entry, "first come, first served within an owner"
        queue.remove(entry)
        self.live[place] = True
        self.check_no_overcommit()
        try:
            await asyncio.sleep(rng.uniform(0, 3))
            self.live[place] = False
            place.started()
            await asyncio.sleep(rng.uniform(0, 10))
            if rng.random() < 0.3:
                await self.admission.restart(place, deadline=FAR)
                self.live[place] = True
                self.check_no_overcommit()
                await asyncio.sleep(rng.uniform(0, 3))
            self.outcomes["served"] += 1
        finally:
            del self.live[place]
            place.release()

    async def mischief(self) -> None:
        """Hosts come and go."""
        while True:
            await asyncio.sleep(self.rng.uniform(0, 5))
            name = self.rng.choice(list(self.hosts))
            condition = self.rng.choice(["open", "open", "quarantined", "drained"])
            self.hosts[name] = replace(self.hosts[name], condition=condition)
            self.admission.wake()

    async def inspector(self) -> None:
        while True:
            await asyncio.sleep(0.37)
            await settled()
            self.check_no_overcommit()
            self.check_nobody_waits_in_vain()

    async def run(self, num_users: int) -> Counter[str]:
        users = [asyncio.create_task(self.user(number)) for number in range(num_users)]
        background = [asyncio.create_task(self.mischief()), asyncio.create_task(self.inspector())]
        await asyncio.wait([*users, background[1]], return_when=asyncio.FIRST_EXCEPTION, timeout=100)
        background[0].cancel()
        for name in self.hosts:
            self.hosts[name] = replace(self.hosts[name], condition="open")
        self.admission.wake()
        await asyncio.wait([*users, background[1]], timeout=600, return_when=asyncio.FIRST_EXCEPTION)
        background[1].cancel()
        for result in await asyncio.gather(*users, *background, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        assert empty(self.admission, *self.hosts)
        return self.outcomes


@pytest.mark.parametrize("seed", range(12))
def test_random_towns_are_never_overcommitted_and_nobody_waits_in_vain(seed: int):
    outcomes = run_virtual(lambda: Town(seed, max_passes=10**9).run(150))
    assert outcomes["served"] > 30
    assert outcomes["cancelled"] > 0
    assert outcomes["Overloaded"] > 0


@pytest.mark.parametrize("seed", range(12, 20))
def test_random_towns_in_which_hosts_are_kept_serve_everybody_too(seed: int):
    town = Town(seed, max_passes=2)
    town.check_nobody_waits_in_vain = lambda: None  # type: ignore[method-assign]  # a kept host makes others wait
    outcomes = run_virtual(lambda: town.run(150))
    assert outcomes["served"] > 10
    assert outcomes["starved"] == 0


@pytest.mark.parametrize("seed", range(8))
def test_between_two_turns_of_one_owner_each_other_owner_has_at_most_one(seed: int):
    rng = random.Random(seed)
    grants: list[str] = []
    waiting: Counter[str] = Counter()
    since: dict[str, Counter[str]] = {}

    async def use(admission: Admission, owner: str) -> None:
        await asyncio.sleep(rng.uniform(0, 40))
        if not waiting[owner]:
            since[owner] = Counter()  # it joins the queue now
        waiting[owner] += 1
        place = await admission.admit(SMALL, deadline=FAR, owner=owner)
        waiting[owner] -= 1
        for other, counts in since.items():
            if other != owner and waiting[other]:
                counts[owner] += 1
                assert counts[owner] <= 1, f"{owner} went twice while {other} waited"
        since[owner] = Counter()
        grants.append(owner)
        await asyncio.sleep(rng.uniform(0.1, 2))
        place.release()

    async def main() -> None:
        admission = Admission(lambda: [host(memory_gib=3)], LIMITS)
        sizes = {"greedy": 120, "b": 20, "c": 20, "d": 5}
        async with asyncio.TaskGroup() as uses:
            for owner, size in sizes.items():
                for _ in range(size):
                    uses.create_task(use(admission, owner))
        assert Counter(grants) == sizes
        assert empty(admission)

    run_virtual(main)


def test_a_thousand_that_wait_cost_little(monkeypatch: pytest.MonkeyPatch):
    """Whatever changes, only the first of each owner is looked at."""
    num_looks = 0

    def counted(*arguments: Any, **options: Any) -> str:
        nonlocal num_looks
        num_looks += 1
        return choose_host(*arguments, **options)

    monkeypatch.setattr("rollcage.sandbox.manager.admission.choose_host", counted)

    async def main() -> None:
        admission = Admission(lambda: [host("a", 2), host("b", 2)], LIMITS)

        async def use(owner: str) -> None:
            place = await admission.admit(SMALL, deadline=FAR, owner=owner)
            await asyncio.sleep(0.1)
            place.release()

        async with asyncio.TaskGroup() as uses:
            for number in range(1000):
                uses.create_task(use(f"owner {number % 20}"))
        assert empty(admission, "a", "b")

    run_virtual(main)
    assert num_looks < 1000 * (1 + 20 + 20 + 1)  # at each arrival and at each release, 20 owners
