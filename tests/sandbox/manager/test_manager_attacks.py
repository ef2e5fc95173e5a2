"""What nobody plans for: clocks that jump, a full disk under the store, callers that leave at any moment."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollcage.errors import RollcageError
from rollcage.sandbox import RestartPolicy, SandboxError, SandboxSpec, Settings, State
from rollcage.sandbox.drivers.fake import Behaviour, FakeDriver, Fault
from rollcage.sandbox.errors import DaemonForbidden, Overloaded
from rollcage.sandbox.manager.manager import Manager
from rollcage.sandbox.manager.placement import HostLimits
from rollcage.sandbox.types import MIB

INF = float("inf")


def seconds() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("jump_s", [7200.0, -7200.0])
def test_a_clock_that_is_set_neither_ends_leases_nor_lets_them_last(world: Any, jump_s: float) -> None:
    offset_s, before = 0.0, world.host._clock

    async def scenario(world: Any) -> None:
        nonlocal offset_s
        manager = Manager({"one": world.host}, world.folder, clock=lambda: before() + offset_s)
        async with manager:
            _, renewed = [await manager.create(SandboxSpec(ttl_s=100.0)) for _ in range(2)]
            await asyncio.sleep(50.3)
            offset_s = jump_s
            await renewed.renew()  # before anybody else has seen the new time
            await asyncio.sleep(45.0)
            assert len(await manager.list_sandboxes()) == 2
            await asyncio.sleep(10.0)
            assert [info.id for info in await manager.list_sandboxes()] == [renewed.id]
            await asyncio.sleep(50.0)
            assert await manager.list_sandboxes() == []
            (told,) = [event for event in await manager.events() if event.kind == "clock"]
            assert told.data["jump_s"] == pytest.approx(jump_s)

    world.run(scenario)


def test_a_store_that_cannot_be_written_for_a_while_fails_calls_and_ends_nothing(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        manager._store._db.execute("PRAGMA max_page_count = 1")  # as on a full disk
        manager._store._db.execute("PRAGMA query_only = ON")
        with pytest.raises(SandboxError, match="cannot be written"):
            await manager.create(SandboxSpec())
        world.host.die(world.host.live()[0])
        await asyncio.sleep(60.0)
        manager._store._db.execute("PRAGMA query_only = OFF")
        manager._store._db.execute("PRAGMA max_page_count = 1000000")
        await asyncio.sleep(20.0)
        assert (await sandbox.info()).state is State.FAILED, "its death is found out after all"
        other = await manager.create(SandboxSpec(ttl_s=10))
        assert (await other.exec("true")).ok
        await asyncio.sleep(15.0)
        assert world.host.containers == {}, "leases end, and nothing is left of what could not be kept"
        assert [info.id for info in await manager.list_sandboxes()] == [sandbox.id]
        assert (await manager.hosts())[0].num_sandboxes == 0

    world.run(scenario)


def test_a_store_that_breaks_in_the_middle_of_a_creation_leaves_no_half_a_sandbox(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.host.create_s = 5.0
        manager = await world.manager()
        creating = asyncio.create_task(manager.create(SandboxSpec()))
        await asyncio.sleep(1.0)
        manager._store._db.execute("PRAGMA query_only = ON")
        with pytest.raises(SandboxError, match="cannot be written"):
            await creating
        manager._store._db.execute("PRAGMA query_only = OFF")
        await asyncio.sleep(10.0)
        assert world.host.containers == {}
        assert await manager.list_sandboxes() == []
        assert (await manager.hosts())[0].num_sandboxes == 0

    world.run(scenario)


@pytest.mark.parametrize("num_ticks", range(12))
def test_a_creation_that_is_called_off_at_any_moment_leaves_nothing_in_the_list_for_ever(
    world: Any, num_ticks: int
) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager(Settings(failed_ttl_s=60.0))
        creating = asyncio.create_task(manager.create(SandboxSpec(ttl_s=0)))
        for _ in range(num_ticks):
            await asyncio.sleep(0)
        creating.cancel()
        await asyncio.wait([creating])
        if not creating.cancelled():
            await creating.result().delete()
        await asyncio.sleep(90.0)
        assert await manager.list_sandboxes() == []
        assert world.host.containers == {}
        assert (await manager.hosts())[0].num_sandboxes == 0

    world.run(scenario)


def test_a_deletion_whose_caller_leaves_goes_on(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager(Settings(limits=HostLimits(max_sandboxes=1)))
        first = await manager.create(SandboxSpec(ttl_s=0))
        waiting = asyncio.create_task(manager.create(SandboxSpec(ttl_s=0), owner="ann", key="k"))
        await asyncio.sleep(1.0)
        (info,) = await manager.list_sandboxes(owner="ann")
        for sandbox in (first, await manager.attach(info.id)):
            deleting = asyncio.create_task(sandbox.delete())
            await asyncio.sleep(0)
            deleting.cancel()
            await asyncio.wait([deleting])
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(5.0)
        assert await manager.list_sandboxes() == []
        assert world.host.containers == {}

    world.run(scenario)


def test_a_manager_whose_opening_or_closing_is_called_off_lets_go_of_its_folder(tmp_path: Path) -> None:
    async def main() -> None:
        silent = FakeDriver()
        silent.faults.append(Fault("status", times=INF, delay_s=1000.0))
        with pytest.raises(TimeoutError):  # it waits for its host's first answer
            await asyncio.wait_for(Manager({"one": silent}, tmp_path).__aenter__(), 0.2)
        host = FakeDriver()
        manager = Manager({"one": host}, tmp_path)
        await manager.open()
        await manager.create(SandboxSpec())
        closing = asyncio.create_task(manager.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await manager.close()
        await manager.close()
        async with Manager({"one": host}, tmp_path) as manager:
            assert len(await manager.list_sandboxes()) == 1
        with pytest.raises(RollcageError, match="closed"):
            await manager.list_sandboxes()

    asyncio.run(main())


def test_a_restore_of_a_failed_sandbox_waits_for_room_like_everybody(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager(Settings(limits=HostLimits(max_sandboxes=1), call_timeout_s=2.0))
        sandbox = await manager.create(SandboxSpec())
        await sandbox.exec("echo kept > f")
        await sandbox.snapshot()
        world.host.die(world.host.live()[0])
        await asyncio.sleep(5.0)
        other = await manager.create(SandboxSpec(memory_bytes=MIB))
        with pytest.raises(Overloaded):
            await manager.create(SandboxSpec(), deadline_s=1.0)
        restoring = asyncio.create_task(sandbox.restore())
        await asyncio.sleep(10.0)
        assert (await manager.hosts())[0].num_sandboxes == 1
        assert "1 sandboxes of 1" in (await sandbox.info()).message
        await other.delete()
        await restoring
        assert (await sandbox.exec("cat f")).stdout == b"kept"

    world.run(scenario)


def test_a_connection_that_many_have_to_wait_for_is_no_reason_to_end_a_life(world: Any) -> None:
    """A manager starts beside eighty sandboxes; connecting to each takes a second, eight at a time."""

    async def scenario(world: Any) -> None:
        manager = await world.manager()
        spec = SandboxSpec(restart=RestartPolicy.RESTART)
        made = await asyncio.gather(*(manager.create(spec) for _ in range(70)))
        await world.kill(manager)
        world.host.faults.append(Fault("connect", times=INF, delay_s=1.0))
        manager = await world.manager()
        await asyncio.sleep(60.0)
        assert len(world.host.created) == 70, "none was replaced"
        for old in made:
            assert (await (await manager.attach(old.id)).exec("true")).generation == 1

    world.run(scenario)


def test_a_look_that_goes_wrong_in_an_unforeseen_way_is_told_and_does_not_end_the_looking(world: Any) -> None:
    told: list[Any] = []

    async def scenario(world: Any) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))
        for call in ("list_containers", "status", "events", "list_images", "written_bytes"):
            world.host.faults.append(Fault(call, first=2, times=2, error=lambda: KeyError("a daemon of the future")))
        manager = await world.manager(Settings(images_s=5.0))
        sandbox = await manager.create(SandboxSpec(disk_bytes=MIB))
        world.host.break_events()
        await asyncio.sleep(30.0)
        assert len(told) == 10
        (inside,) = world.host.containers.values()
        world.host.break_events()
        await asyncio.sleep(5.0)
        inside.num_written_bytes = 2 * MIB
        await asyncio.sleep(10.0)
        assert (await sandbox.info()).state is State.FAILED
        assert "wrote" in (await sandbox.info()).message

    world.run(scenario)


def test_warm_sandboxes_outlive_a_kill_of_the_manager_where_the_next_one_wants_them(world: Any) -> None:
    async def scenario(world: Any) -> None:
        wanted, unwanted = SandboxSpec(), SandboxSpec(cpus=2)
        manager = await world.manager()
        manager.keep_warm(wanted, 3)
        manager.keep_warm(unwanted, 2)
        await asyncio.sleep(5.0)
        before = set(world.host.live())
        assert len(before) == 5
        (inside, *_) = world.host.containers.values()
        inside.behaviour = Behaviour(agent_hangs=True)
        await world.kill(manager)
        manager = await world.manager()
        await asyncio.sleep(1.0)
        manager.keep_warm(wanted, 3)
        sandbox = await manager.create(wanted)
        assert set(world.host.live(sandbox.id)) <= before, "one that was there already"
        await asyncio.sleep(120.0)
        kept = set(world.host.live()) & before
        assert len(kept) == 2, "the one that was claimed, and the other one that is well"
        assert len(world.host.live()) == 4, "what nobody wants, and what hangs, is gone"
        assert [info.id for info in await manager.list_sandboxes()] == [sandbox.id]

    world.run(scenario)


def test_a_host_that_refuses_this_user_leaves_creations_to_another_and_costs_a_new_life_none_of_its_tries(
    world: Any,
) -> None:
    async def scenario(world: Any) -> None:
        other = FakeDriver(endpoint="fake://two", clock=world.host._clock)
        world.hosts = {"one": world.host, "two": other}
        manager = await world.manager()
        refused = Fault("create", times=4, error=lambda: DaemonForbidden("not in the group docker"))
        world.hosts["one"].faults.append(refused)
        sandbox = await manager.create(SandboxSpec(restart=RestartPolicy.RESTART))
        assert (await sandbox.info()).host == "two"
        other.faults.append(replace(refused, num_seen=0))
        other.die(other.live()[0])
        await asyncio.sleep(60.0)
        info = await sandbox.info()
        assert (info.state, info.num_restarts) == (State.READY, 1)

    world.run(scenario)
