"""Hosts that die for good, and hosts that answer too late: a sandbox has one life that counts, wherever it is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollcage.sandbox import Probe, RestartPolicy, SandboxRestarted, SandboxSpec, Settings, State
from rollcage.sandbox.drivers.fake import Behaviour, FakeDriver, Fault
from rollcage.sandbox.errors import DeadlineExceeded, HostUnavailable
from rollcage.sandbox.manager.placement import HostLimits

INF = float("inf")
RESTART = SandboxSpec(restart=RestartPolicy.RESTART, ttl_s=0)
RESTORE = SandboxSpec(restart=RestartPolicy.RESTORE, ttl_s=0)


def seconds() -> float:
    return asyncio.get_running_loop().time()


async def reach(sandbox: Any, state: State, within_s: float) -> float:
    """Wait for a state, and return how long it took."""
    begin_s = seconds()
    while (await sandbox.info()).state is not state:
        assert seconds() - begin_s < within_s, f"{await sandbox.info()} after {within_s} s"
        await asyncio.sleep(0.1)
    return seconds() - begin_s


def two_hosts(world: Any) -> None:
    world.hosts = {name: FakeDriver(endpoint=f"fake://{name}", clock=world.host._clock) for name in ("aa", "bb")}


def die(host: FakeDriver, way: str) -> None:
    """A host dies: its machine refuses connections, or swallows them."""
    if way == "refuses":
        host.down = True
        for name in host.live():
            for call in host.containers[name].calls:
                call.reschedule(seconds())
            host.containers[name].sick = True
    else:
        host.faults.append(Fault("*", times=INF, delay_s=INF))
    host.break_events()


def rise(host: FakeDriver) -> None:
    """A host is back, and what ran on it runs on."""
    host.down = False
    host.faults.clear()
    for inside in host.containers.values():
        inside.sick = False


@pytest.mark.parametrize("way", ["refuses", "swallows"])
@pytest.mark.parametrize("spec", [RESTART, RESTORE])
def test_a_sandbox_leaves_a_host_that_is_dead_for_good_and_its_old_life_goes_when_the_host_is_back(
    world: Any, way: str, spec: SandboxSpec
) -> None:
    async def scenario(world: Any) -> None:
        two_hosts(world)
        manager = await world.manager()
        sandbox = await manager.create(spec)
        assert (await sandbox.info()).host == "aa"
        await asyncio.sleep(30.0)
        die(world.hosts["aa"], way)
        await reach(sandbox, State.RECOVERING, within_s=30.0)
        took_s = await reach(sandbox, State.READY, within_s=80.0)
        assert took_s > 15.0, "not before move_after_s"
        info = await sandbox.info()
        assert (info.host, info.num_restarts) == ("bb", 1)
        with pytest.raises(SandboxRestarted):
            await sandbox.exec("true")
        assert (await sandbox.exec("true")).generation == info.generation
        (moved,) = [event for event in await sandbox.events() if event.kind == "moved"]
        assert (moved.data["from"], moved.data["to"]) == ("aa", "bb")
        assert len(world.hosts["aa"].live()) == len(world.hosts["bb"].live()) == 1, "nobody could end the old life"
        assert [host.num_sandboxes for host in await manager.hosts()] == [1, 1], "whose room is still taken"
        await asyncio.sleep(500.0)
        rise(world.hosts["aa"])
        begin_s = seconds()
        while world.hosts["aa"].containers:
            assert seconds() - begin_s < 60.0
            await asyncio.sleep(0.1)
        await asyncio.sleep(5.0)
        assert [host.num_sandboxes for host in await manager.hosts()] == [0, 1]
        assert (await sandbox.exec("true")).generation == info.generation

    world.run(scenario)


def test_a_host_that_is_away_for_less_than_move_after_s_keeps_its_sandboxes(world: Any) -> None:
    async def scenario(world: Any) -> None:
        two_hosts(world)
        manager = await world.manager(Settings(move_after_s=60.0))
        sandbox = await manager.create(RESTART)
        die(world.hosts["aa"], "refuses")
        await asyncio.sleep(40.0)
        rise(world.hosts["aa"])
        await reach(sandbox, State.READY, within_s=60.0)
        assert (await sandbox.info()).host == "aa"
        assert world.hosts["bb"].created == []

    world.run(scenario)


def test_a_sandbox_that_answers_stays_though_its_daemon_does_not(world: Any) -> None:
    async def scenario(world: Any) -> None:
        two_hosts(world)
        manager = await world.manager()
        sandbox = await manager.create(RESTART)
        world.hosts["aa"].down = True
        await asyncio.sleep(300.0)
        info = await sandbox.info()
        assert (info.state, info.host, info.generation) == (State.READY, "aa", 1)
        assert (await sandbox.exec("true")).ok

    world.run(scenario)


def test_a_snapshot_that_lies_only_on_the_dead_host_is_waited_for_and_that_is_said(world: Any) -> None:
    async def scenario(world: Any) -> None:
        two_hosts(world)
        manager = await world.manager()
        sandbox = await manager.create(RESTORE)
        await sandbox.exec("echo kept > f")
        await sandbox.snapshot()
        die(world.hosts["aa"], "refuses")
        await asyncio.sleep(120.0)
        info = await sandbox.info()
        assert info.state is State.RECOVERING
        assert "host 'aa' has not answered for" in info.message
        assert "lies on no other: it waits for that host" in info.message
        assert len([event for event in await sandbox.events() if event.kind == "recovering"]) == 1
        with pytest.raises((DeadlineExceeded, SandboxRestarted)):
            await sandbox.exec("true", timeout_s=5)
        rise(world.hosts["aa"])
        await reach(sandbox, State.READY, within_s=60.0)
        assert (await sandbox.exec("cat f")).stdout == b"kept"
        assert (await sandbox.info()).host == "aa"

    world.run(scenario)


def test_a_snapshot_that_another_host_has_too_is_restored_there(world: Any) -> None:
    async def scenario(world: Any) -> None:
        two_hosts(world)
        world.hosts["bb"].images = world.hosts["aa"].images  # two ways to one image store
        world.hosts["cc"] = FakeDriver(endpoint="fake://cc", clock=world.hosts["aa"]._clock)
        manager = await world.manager()
        sandbox = await manager.create(RESTORE)
        await sandbox.exec("echo kept > f")
        await sandbox.snapshot()
        others = [await manager.create(SandboxSpec(ttl_s=0)) for _ in range(2)]
        assert {(await other.info()).host for other in others} == {"bb", "cc"}
        die(world.hosts["aa"], "refuses")
        await reach(sandbox, State.RECOVERING, within_s=30.0)
        await reach(sandbox, State.READY, within_s=80.0)
        assert (await sandbox.info()).host == "bb"
        with pytest.raises(SandboxRestarted):
            await sandbox.exec("true")
        assert (await sandbox.exec("cat f")).stdout == b"kept"

    world.run(scenario)


def test_where_no_other_host_has_room_it_waits_and_goes_on_where_it_first_can(world: Any) -> None:
    async def scenario(world: Any) -> None:
        two_hosts(world)
        manager = await world.manager(Settings(limits=HostLimits(max_sandboxes=1)))
        sandbox, other = await manager.create(RESTART), await manager.create(SandboxSpec(ttl_s=0))
        die(world.hosts["aa"], "refuses")
        await asyncio.sleep(150.0)
        info = await sandbox.info()
        assert info.state is State.RECOVERING
        assert "1 sandboxes of 1" in info.message
        await other.delete()
        await reach(sandbox, State.READY, within_s=60.0)
        assert (await sandbox.info()).host == "bb"

    world.run(scenario)


@pytest.mark.parametrize("spec", [RESTART, SandboxSpec(ttl_s=0)])
def test_a_manager_that_starts_while_a_host_is_dead_moves_by_policy_and_says_what_it_cannot_reach(
    world: Any, spec: SandboxSpec
) -> None:
    async def scenario(world: Any) -> None:
        two_hosts(world)
        manager = await world.manager()
        sandbox = await manager.create(spec)
        await world.kill(manager)
        die(world.hosts["aa"], "refuses")
        manager = await world.manager()
        sandbox = await manager.attach(sandbox.id)
        if spec.restart is RestartPolicy.FAIL:
            await reach(sandbox, State.UNHEALTHY, within_s=30.0)
            await asyncio.sleep(100.0)
            rise(world.hosts["aa"])
            await reach(sandbox, State.READY, within_s=60.0)
            assert (await sandbox.exec("true")).generation == 1
        else:
            await reach(sandbox, State.RECOVERING, within_s=30.0)
            await world.kill(manager)
            manager = await world.manager()
            sandbox = await manager.attach(sandbox.id)
            await reach(sandbox, State.READY, within_s=80.0)
            assert (await sandbox.info()).host == "bb"

    world.run(scenario)


def test_a_sandbox_leaves_a_host_that_the_next_manager_does_not_have(world: Any) -> None:
    async def scenario(world: Any) -> None:
        two_hosts(world)
        manager = await world.manager()
        sandbox = await manager.create(RESTART)
        await manager.close()
        away = world.hosts.pop("aa")
        manager = await world.manager()
        sandbox = await manager.attach(sandbox.id)
        await reach(sandbox, State.RECOVERING, within_s=30.0)
        await reach(sandbox, State.READY, within_s=60.0)
        assert (await sandbox.info()).host == "bb"
        await manager.close()
        world.hosts["aa"] = away
        manager = await world.manager()
        await asyncio.sleep(10.0)
        assert away.containers == {}
        assert (await (await manager.attach(sandbox.id)).exec("true")).ok

    world.run(scenario)


def test_a_store_that_is_lost_after_a_move_is_rebuilt_with_the_later_life(world: Any) -> None:
    async def scenario(world: Any) -> None:
        two_hosts(world)
        manager = await world.manager()
        sandbox = await manager.create(RESTART)
        await sandbox.exec("echo old > f")
        die(world.hosts["aa"], "refuses")
        await reach(sandbox, State.RECOVERING, within_s=30.0)
        await reach(sandbox, State.READY, within_s=80.0)
        await manager.close()
        for file in world.folder.glob("manager.db*"):
            file.unlink()
        rise(world.hosts["aa"])
        manager = await world.manager()
        await asyncio.sleep(15.0)
        (info,) = await manager.list_sandboxes()
        assert (info.id, info.host, info.state) == (sandbox.id, "bb", State.READY)
        assert world.hosts["aa"].containers == {}
        assert (await (await manager.attach(sandbox.id)).exec("cat f")).exit_code == 1
        assert [host.num_sandboxes for host in await manager.hosts()] == [0, 1]

    world.run(scenario)


@pytest.mark.parametrize("events_lost", [False, True])
def test_S15_of_two_hosts_that_both_make_it_after_all_one_wins_and_the_other_is_cleared_at_once(
    world: Any, events_lost: bool
) -> None:
    async def scenario(world: Any) -> None:
        two_hosts(world)
        late = world.hosts["aa"]
        late.create_s = 20.0  # longer than the manager waits: its answer is lost, and it goes on
        late.events_lost = events_lost
        late.faults.append(Fault("remove", error=lambda: HostUnavailable("500")))
        manager = await world.manager(Settings(call_timeout_s=0.5, num_create_tries=2))
        ready: list[Any] = []
        creating = asyncio.create_task(manager.create(RESTART))
        creating.add_done_callback(lambda task: ready.append(task.result()))
        alone_s = seconds()
        while seconds() < 80.0:
            alone_s = alone_s if late.live() else seconds()
            longest_s = 4.0 if events_lost else 0.3
            assert seconds() - alone_s <= longest_s, "the loser is found by its event, or by the next look"
            await asyncio.sleep(0.1)
        assert len(late.created) == 2, "at 20 s and at 26 s, for both tries"
        (sandbox,) = ready
        info = await sandbox.info()
        assert (info.host, info.state) == ("bb", State.READY)
        assert (await sandbox.exec("true")).generation == info.generation
        assert (late.containers, len(world.hosts["bb"].containers)) == ({}, 1)
        assert not set(late.created) & set(world.hosts["bb"].created), "no two lives have one name"
        assert [host.num_sandboxes for host in await manager.hosts()] == [0, 1]

    world.run(scenario)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("harm", ["dies", "dies unheard", "hangs", "sick"])
def test_with_the_defaults_a_death_is_seen_within_10_s_and_a_restore_done_within_5_s_more(
    world: Any, harm: str, seed: int
) -> None:
    """What hangs: at worst one probe has just succeeded; the second one after it ends 3.3 + 3.3 + 3 s later."""

    async def scenario(world: Any) -> None:
        world.host.create_s = 1.5
        manager = await world.manager()
        sandbox = await manager.create(RESTORE)
        await sandbox.exec("echo kept > f")
        await sandbox.snapshot()
        await asyncio.sleep(20.0 + 0.7 * seed)
        (name,) = world.host.live()
        if harm == "hangs":
            world.host.containers[name].behaviour = Behaviour(agent_hangs=True)
        elif harm == "sick":
            world.host.containers[name].sick = True
        else:
            world.host.events_lost = harm == "dies unheard"
            world.host.die(name)
        seen_s = await reach(sandbox, State.RECOVERING, within_s=10.0)
        assert seen_s < {"dies": 0.5, "dies unheard": 4.0}.get(harm, 10.0)
        await reach(sandbox, State.READY, within_s=5.0)
        with pytest.raises(SandboxRestarted):
            await sandbox.exec("true")
        assert (await sandbox.exec("cat f")).stdout == b"kept"

    world.run(scenario)


def test_the_arithmetic_of_the_default_probe(world: Any) -> None:
    probe = Probe()
    assert probe.num_failures * 1.1 * probe.interval_s + probe.timeout_s < 10.0
