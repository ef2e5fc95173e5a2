"""How sandboxes come to be, and what is left where they do not."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from rollcage.errors import UserError
from rollcage.sandbox import BadSpec, SandboxSpec, StartFailed, StartTimeout, State
from rollcage.sandbox.drivers.base import Container, HostStatus
from rollcage.sandbox.drivers.fake import Behaviour, FakeDriver, Fault
from rollcage.sandbox.errors import (
    DaemonUnreachable,
    DiskPressure,
    HostUnavailable,
    ImageMissing,
    Overloaded,
    SandboxError,
)
from rollcage.sandbox.manager.fleet import Settings
from rollcage.sandbox.manager.placement import HostLimits
from rollcage.sandbox.types import MIB

INF = float("inf")


def seconds() -> float:
    return asyncio.get_running_loop().time()


def test_create_gives_a_ready_sandbox_and_delete_leaves_nothing(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec(), owner="ann")
        info = await sandbox.info()
        assert (info.state, info.generation, info.host, info.owner) == (State.READY, 1, "one", "ann")
        assert (await sandbox.exec("echo hi")).stdout == b"hi\n"
        assert [event.kind for event in await sandbox.events()] == ["created", "starting", "ready"]
        await sandbox.delete()
        await sandbox.delete()
        assert world.host.containers == {}
        assert (await manager.hosts())[0].num_sandboxes == 0
        assert await manager.list_sandboxes() == []
        assert [event.kind for event in await sandbox.events()][-2:] == ["deleting", "deleted"]

    world.run(scenario)


def test_S4_a_daemon_that_never_answers_costs_only_its_own_calls(world: Any) -> None:
    async def scenario(world: Any) -> None:
        silent = FakeDriver(endpoint="fake://silent")
        silent.faults.append(Fault("*", times=INF, delay_s=INF))
        world.hosts["silent"] = silent
        manager = await world.manager()
        assert seconds() <= 5.0, "opening waits for nobody longer than that"
        made = await asyncio.gather(*(manager.create(SandboxSpec(), deadline_s=10) for _ in range(20)))
        assert {(await sandbox.info()).host for sandbox in made} == {"one"}
        assert seconds() <= 15.0
        world.hosts["one"].faults.append(Fault("create", times=INF, delay_s=INF))
        begin_s = seconds()
        with pytest.raises(SandboxError):
            await manager.create(SandboxSpec(), deadline_s=10)
        assert seconds() - begin_s <= 11.0
        assert (await made[0].exec("echo still here")).ok

    world.run(scenario)


def test_S5_a_start_that_never_gets_ready_fails_at_its_deadline_and_leaves_nothing(world: Any) -> None:
    async def scenario(world: Any) -> None:
        def behave(container: Container) -> Behaviour:
            bad = container.spec.labels.get("bad") == "yes"
            return Behaviour(ready_after_s=float("inf") if bad else 1.0, log="x" * MIB + "\nlast words")

        world.host.behave = behave
        manager = await world.manager()
        spec = SandboxSpec(ready_command="test -e /ready", start_timeout_s=3.0, labels={"bad": "yes"})
        good = SandboxSpec(ready_command="test -e /ready", start_timeout_s=3.0)
        bad, fine = await asyncio.gather(manager.create(spec), manager.create(good), return_exceptions=True)
        assert isinstance(bad, StartTimeout)
        assert bad.log_tail.endswith("last words")
        assert len(bad.log_tail) <= 20_000
        assert 3.0 <= seconds() <= 4.0
        assert (await fine.info()).state is State.READY
        assert world.host.live() == world.host.live(fine.id)
        assert len(world.host.containers) == 1

    world.run(scenario)


def test_S6_twenty_starts_of_what_cannot_start_leave_nothing(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.host.behave = lambda container: Behaviour(fails=True)
        manager = await world.manager()
        results = await asyncio.gather(
            *(manager.create(SandboxSpec(command=("/nope",))) for _ in range(20)), return_exceptions=True
        )
        assert all(isinstance(result, StartFailed) for result in results)
        assert world.host.containers == {}
        assert (await manager.hosts())[0].num_sandboxes == 0

    world.run(scenario)


def test_a_main_process_that_ends_before_it_is_ready_is_named_with_its_exit_code(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.host.behave = lambda container: Behaviour(
            dies_after_s=1.0, exit_code=3, ready_after_s=9.0, log="no config"
        )
        manager = await world.manager()
        with pytest.raises(StartFailed, match="exit code 3") as caught:
            await manager.create(SandboxSpec(ready_command="ready"))
        assert caught.value.log_tail == "no config"
        assert seconds() < 2.0
        assert world.host.containers == {}

    world.run(scenario)


def test_S15_one_container_per_key_although_answers_are_lost(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        world.host.faults.append(Fault("create", error=lambda: HostUnavailable("too late"), lost_answer=True))
        first = await manager.create(SandboxSpec(), key="episode-1")
        assert len(world.host.created) == 1, "the answer was lost, and the second call found what the first had made"
        made = await asyncio.gather(*(manager.create(SandboxSpec(), key="episode-1") for _ in range(100)))
        assert {sandbox.id for sandbox in made} == {first.id}
        made = await asyncio.gather(*(manager.create(SandboxSpec(), key=f"k{i % 5}") for i in range(100)))
        assert len({sandbox.id for sandbox in made}) == 5
        assert len(world.host.created) == 6

    world.run(scenario)


def test_a_key_belongs_to_one_specification_and_is_free_again_after_the_end(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        first = await manager.create(SandboxSpec(), key="k")
        with pytest.raises(BadSpec, match="another specification"):
            await manager.create(SandboxSpec(cpus=2), key="k")
        await first.delete()
        second = await manager.create(SandboxSpec(cpus=2), key="k")
        assert second.id != first.id

    world.run(scenario)


def test_a_creation_with_a_key_goes_on_when_its_caller_leaves_and_one_without_does_not(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.host.create_s = 2.0
        manager = await world.manager()
        for key, num in (("k", 1), ("", 1)):
            creating = asyncio.create_task(manager.create(SandboxSpec(), key=key))
            await asyncio.sleep(1.0)
            creating.cancel()
            await asyncio.sleep(10.0)
            assert len(world.host.containers) == num
        again = await manager.create(SandboxSpec(), key="k")
        assert len(world.host.created) == 2
        assert (await again.info()).state is State.READY

    world.run(scenario)


def test_S20_a_start_that_failed_is_an_error_for_ever_never_a_success(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.host.behave = lambda container: Behaviour(ready_after_s=INF, log="waiting for godot")
        manager = await world.manager()
        with pytest.raises(StartTimeout):
            await manager.create(SandboxSpec(ready_command="ready", start_timeout_s=5, ttl_s=60), key="k")
        (failed,) = await manager.list_sandboxes()
        assert failed.state is State.FAILED
        assert "not ready" in failed.message
        world.host.behave = lambda container: Behaviour()
        again = await manager.create(SandboxSpec(ready_command="ready", start_timeout_s=5, ttl_s=60), key="k")
        assert again.id != failed.id
        await asyncio.sleep(58)
        await again.renew()
        await asyncio.sleep(5)
        assert [info.id for info in await manager.list_sandboxes()] == [again.id], (
            "the failed one went at its lease's end"
        )

    world.run(scenario)


def test_what_can_never_work_is_said_at_once(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        with pytest.raises(ImageMissing, match="nowhere"):
            await manager.create(SandboxSpec(image="nowhere"))
        with pytest.raises(BadSpec):
            await manager.create(SandboxSpec(memory_bytes=2**60))
        world.host.down = True
        with pytest.raises(DaemonUnreachable):
            await manager.create(SandboxSpec())
        assert seconds() < 1.0
        await asyncio.sleep(30.0)
        with pytest.raises(DaemonUnreachable):
            await manager.create(SandboxSpec())
        world.host.down = False
        await asyncio.sleep(90.0)
        assert (await (await manager.create(SandboxSpec())).exec("true")).ok

    world.run(scenario)


def test_creations_wait_for_room_and_owners_take_turns(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager(Settings(limits=HostLimits(max_sandboxes=2)))
        held = [await manager.create(SandboxSpec(), owner="greedy") for _ in range(2)]
        order: list[str] = []

        async def create(owner: str) -> None:
            sandbox = await manager.create(SandboxSpec(), owner=owner)
            order.append(owner)
            await sandbox.delete()

        waiting = [asyncio.create_task(create(owner)) for owner in ("greedy", "greedy", "greedy", "modest")]
        with pytest.raises(Overloaded):
            await manager.create(SandboxSpec(), owner="late", deadline_s=3)
        assert {info.state for info in await manager.list_sandboxes(owner="modest")} == {State.PENDING}
        for sandbox in held:
            await sandbox.delete()
        await asyncio.gather(*waiting)
        assert "modest" in order[:2]
        assert len(world.host.created) == 6

    world.run(scenario)


def test_a_full_disk_lets_nothing_in(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.host.host_status = HostStatus(64, 65536 * MIB, free_disk_bytes=100 * MIB)
        manager = await world.manager()
        with pytest.raises(DiskPressure):
            await manager.create(SandboxSpec())
        assert [host.condition for host in await manager.hosts()] == ["full"]

    world.run(scenario)


def test_a_drained_host_gets_nothing_even_from_the_next_manager(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.hosts["two"] = FakeDriver(endpoint="fake://two")
        manager = await world.manager()
        await manager.drain("one")
        with pytest.raises(UserError, match="Did you mean 'two'"):
            await manager.drain("twoo")
        await manager.close()
        manager = await world.manager()
        made = [await manager.create(SandboxSpec()) for _ in range(4)]
        assert {(await sandbox.info()).host for sandbox in made} == {"two"}
        await manager.drain("one", on=False)
        assert (await (await manager.create(SandboxSpec())).info()).host == "one"

    world.run(scenario)


def test_a_host_that_fails_hands_over_to_another_and_what_it_made_is_removed(world: Any) -> None:
    async def scenario(world: Any) -> None:
        bad = FakeDriver(endpoint="fake://two")
        bad.faults.append(Fault("create", times=3, error=lambda: HostUnavailable("500"), lost_answer=True))
        bad.faults.append(Fault("remove", times=2, error=lambda: HostUnavailable("500")))
        world.hosts = {"aa": bad, "one": world.hosts["one"]}
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        assert (await sandbox.info()).host == "one"
        await asyncio.sleep(30.0)
        assert bad.containers == {}
        assert [host.num_sandboxes for host in await manager.hosts()] == [0, 1]

    world.run(scenario)


def test_S19_warm_sandboxes_are_claimed_once_each_and_the_dead_are_left_out(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.host.create_s = 1.0
        manager = await world.manager()
        spec = SandboxSpec()
        manager.keep_warm(spec, 3)
        await asyncio.sleep(5.0)
        assert len(world.host.live()) == 3
        assert await manager.list_sandboxes() == []
        world.host.events_lost = True
        world.host.die(world.host.live()[0])
        begin_s = seconds()
        first = await manager.create(SandboxSpec(ttl_s=50, labels={"mine": "yes"}), key="a", owner="ann")
        assert seconds() == begin_s, "a claim waits for no start"
        info = await first.info()
        assert (info.key, info.owner, info.spec.labels) == ("a", "ann", {"mine": "yes"})
        assert info.expires_at - world.host._clock() == pytest.approx(50)
        made = await asyncio.gather(*(manager.create(spec) for _ in range(20)))
        assert len({sandbox.id for sandbox in made} | {first.id}) == 21
        assert all(result.ok for result in await asyncio.gather(*(sandbox.exec("true") for sandbox in made)))
        await manager.close()
        assert len(world.host.live()) == 21, "the warm ones end with the manager"

    world.run(scenario)


def test_S19_an_image_that_never_gets_ready_never_exceeds_the_target(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.host.behave = lambda container: Behaviour(ready_after_s=INF)
        manager = await world.manager()
        manager.keep_warm(SandboxSpec(ready_command="never", start_timeout_s=2), 3)
        for _ in range(60):
            await asyncio.sleep(1.0)
            assert len(world.host.containers) <= 3
        assert 3 < len(world.host.created) < 60

    world.run(scenario)


def test_a_call_costs_little_above_its_guest(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        begin_s = time.perf_counter()
        for _ in range(200):
            await sandbox.exec("true")
        assert (time.perf_counter() - begin_s) / 200 < 0.001

    world.run(scenario)


def test_a_failed_creation_stays_listed_for_failed_ttl_s_also_over_a_restart(world: Any) -> None:
    async def scenario(world: Any) -> None:
        settings = Settings(failed_ttl_s=100.0)
        manager = await world.manager(settings)
        world.host.behave = lambda container: Behaviour(fails=True)
        for ttl_s in (0.0, 10_000.0):
            with pytest.raises(StartFailed):
                await manager.create(SandboxSpec(command=("/nope",), ttl_s=ttl_s))
        await asyncio.sleep(60.0)
        await world.kill(manager)
        manager = await world.manager(settings)
        failed = await manager.list_sandboxes()
        assert [info.state for info in failed] == [State.FAILED] * 2
        assert all("could not be started" in info.message for info in failed)
        await (await manager.attach(failed[0].id)).renew()
        await asyncio.sleep(35.0)
        assert len(await manager.list_sandboxes()) == 2
        await asyncio.sleep(10.0)
        assert [info.id for info in await manager.list_sandboxes()] == [failed[0].id], "renewed, but not for ever"
        await asyncio.sleep(60.0)
        assert await manager.list_sandboxes() == []

    world.run(scenario)


def test_the_image_is_in_the_history_and_why_a_creation_waits_in_the_list(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager(Settings(limits=HostLimits(cpu_overcommit=1.0)))
        first = await manager.create(SandboxSpec(cpus=64))
        created = (await first.events())[0]
        assert (created.kind, created.data["image"]) == ("created", "rollcage-base")
        waiting = asyncio.create_task(manager.create(SandboxSpec(cpus=64), owner="ann"))
        await asyncio.sleep(1.0)
        (info,) = await manager.list_sandboxes(owner="ann")
        assert info.state is State.PENDING
        assert "64 of 64 CPUs are promised (64 cores, cpu_overcommit 1), it asks for 64" in info.message
        assert "HostLimits" in info.message
        await first.delete()
        assert (await (await waiting).info()).message == ""

    world.run(scenario)
