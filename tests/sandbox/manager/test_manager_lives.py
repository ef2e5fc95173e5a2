"""What happens to a sandbox that dies, hangs, or is asked for a new life."""

from __future__ import annotations

import asyncio
import io
import itertools
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rollcage.sandbox import (
    NoSuchPath,
    Probe,
    RestartPolicy,
    SandboxNotFound,
    SandboxRestarted,
    SandboxSpec,
    SandboxUnavailable,
    Settings,
    State,
    UnsafePath,
)
from rollcage.sandbox.drivers.fake import Behaviour, FakeDriver, Fault
from rollcage.sandbox.errors import DeadlineExceeded, HostUnavailable
from rollcage.sandbox.manager.manager import Manager
from rollcage.sandbox.types import MIB, ExecRequest, ExecResult, Output

INF = float("inf")
RESTART = SandboxSpec(restart=RestartPolicy.RESTART)
RESTORE = SandboxSpec(restart=RestartPolicy.RESTORE)


def seconds() -> float:
    return asyncio.get_running_loop().time()


async def reach(sandbox: Any, state: State, within_s: float) -> None:
    begin_s = seconds()
    while (await sandbox.info()).state is not state:
        assert seconds() - begin_s < within_s, f"{await sandbox.info()} after {within_s} s"
        await asyncio.sleep(0.1)


def kinds(events: Any) -> list[str]:
    return [event.kind for event in events]


def test_S9_a_call_to_a_dead_sandbox_says_how_it_died(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.host.behave = lambda container: Behaviour(log="line 1\nout of cheese")
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        calls = [asyncio.create_task(sandbox.exec("sleep 50")) for _ in range(3)]
        await asyncio.sleep(1.0)
        world.host.die(world.host.live()[0], 137, oom_killed=True)
        for call in calls:
            with pytest.raises(SandboxUnavailable) as caught:
                await call
        for _ in range(2):
            error = caught.value
            assert (error.state, error.exit_code, error.oom_killed) == ("FAILED", 137, True)
            assert error.log_tail == "line 1\nout of cheese"
            with pytest.raises(SandboxUnavailable) as caught:
                await sandbox.exec("echo hi")
        assert seconds() < 2.0
        assert world.host.containers == {}
        assert await sandbox.logs(num_lines=1) == "out of cheese"
        assert (await manager.hosts())[0].num_sandboxes == 0

    world.run(scenario)


def test_S9_a_death_is_seen_within_10_s_although_events_are_lost_and_nobody_calls(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.host.events_lost = True
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec(probe=Probe(interval_s=1000)))
        await asyncio.sleep(20.0)
        world.host.die(world.host.live()[0])
        await reach(sandbox, State.FAILED, within_s=10.0)

    world.run(scenario)


def test_S9_a_sandbox_in_which_nothing_can_be_started_becomes_unhealthy_and_may_recover(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        (inside,) = world.host.containers.values()
        inside.sick = True
        await reach(sandbox, State.UNHEALTHY, within_s=20.0)
        assert "probes failed" in (await sandbox.info()).message
        inside.sick = False
        assert (await sandbox.exec("echo hi")).ok, "files can still be saved"
        await reach(sandbox, State.READY, within_s=20.0)
        assert kinds(await sandbox.events())[-2:] == ["unhealthy", "healthy"]

    world.run(scenario)


def test_a_probe_command_of_the_users_decides_too(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec(probe=Probe(interval_s=1, command="exit 3")))
        await reach(sandbox, State.UNHEALTHY, within_s=5.0)
        assert "exit code 3" in (await sandbox.info()).message

    world.run(scenario)


def test_an_agent_that_hangs_is_replaced_by_policy_and_calls_end_by_their_deadline(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(RESTART)
        (inside,) = world.host.containers.values()
        inside.behaviour = Behaviour(agent_hangs=True)
        begin_s = seconds()
        with pytest.raises((SandboxRestarted, DeadlineExceeded)):
            await sandbox.exec("echo hi", timeout_s=30)
        assert seconds() - begin_s < 30
        await reach(sandbox, State.READY, within_s=5.0)
        assert (await sandbox.info()).generation == 2
        assert (await sandbox.exec("echo hi")).generation == 2
        assert "unhealthy" in kinds(await sandbox.events())

    world.run(scenario)


def test_S10_policy_restore_brings_the_files_back_and_tells_the_call_in_flight(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(RESTORE)
        await sandbox.exec("echo checkpointed > notes")
        await sandbox.snapshot()
        await sandbox.exec("echo lost > notes")
        call = asyncio.create_task(sandbox.exec("sleep 50"))
        await asyncio.sleep(1.0)
        died_s = seconds()
        await world.host.kill(world.host.live()[0])
        with pytest.raises(SandboxRestarted) as caught:
            await call
        assert caught.value.generation == 2
        result = await sandbox.exec("cat notes")
        assert (result.stdout, result.generation) == (b"checkpointed", 2)
        assert seconds() - died_s < 5.0
        info = await sandbox.info()
        assert (info.generation, info.num_restarts, info.state) == (2, 1, State.READY)
        assert len(world.host.live()) == 1

    world.run(scenario)


def test_S10_never_a_silent_restart_each_holder_is_told_once(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(RESTART)
        other = await manager.attach(sandbox.id)
        world.host.die(world.host.live()[0])
        await asyncio.sleep(5.0)
        for holder in (sandbox, other):
            with pytest.raises(SandboxRestarted):
                await holder.exec("echo 1")
            assert (await holder.exec("echo 2")).generation == 2
        late = await manager.attach(sandbox.id, generation=1)
        with pytest.raises(SandboxRestarted):
            await late.exec("echo 1")
        assert (await (await manager.attach(sandbox.id)).exec("echo 1")).ok

    world.run(scenario)


def test_S10_policy_fail_fails(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec(restart=RestartPolicy.FAIL))
        world.host.die(world.host.live()[0], 7)
        await reach(sandbox, State.FAILED, within_s=1.0)
        info = await sandbox.info()
        assert (info.exit_code, info.generation) == (7, 1)
        assert len(world.host.created) == 1

    world.run(scenario)


def test_S20_a_restart_has_a_new_start_time_and_the_old_one_is_in_the_history(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(RESTART)
        first = (await sandbox.info()).started_at
        await asyncio.sleep(100.0)
        world.host.die(world.host.live()[0])
        await asyncio.sleep(5.0)
        assert (await sandbox.info()).started_at > first + 99
        (died,) = [event for event in await sandbox.events() if event.kind == "died"]
        assert died.data["started_at"] == first

    world.run(scenario)


def test_restarts_back_off_and_end_with_their_budget(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.host.behave = lambda container: Behaviour(dies_after_s=0.5, exit_code=9)
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec(restart=RestartPolicy.RESTART, max_restarts=4))
        await reach(sandbox, State.FAILED, within_s=60.0)
        info = await sandbox.info()
        assert info.num_restarts == 4
        assert "4 restarts are used up" in info.message
        assert len(world.host.created) == 5
        starts = [event.time for event in await sandbox.events() if event.kind in ("ready", "restarted")]
        pauses = [after - before for before, after in itertools.pairwise(starts)]
        assert pauses == sorted(pauses), "each pause is longer than the last"
        assert world.host.containers == {}

    world.run(scenario)


def test_new_lives_that_do_not_come_up_use_up_the_budget_and_a_hosts_trouble_does_not(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        patient = await manager.create(RESTART)
        world.host.faults.append(Fault("create", times=6, error=lambda: HostUnavailable("500")))
        world.host.die(world.host.live()[0])
        await reach(patient, State.RECOVERING, within_s=1.0)
        await reach(patient, State.READY, within_s=100.0)
        assert (await patient.info()).num_restarts == 1
        assert len(world.host.live()) == 1
        world.host.behave = lambda container: Behaviour(fails=True)
        world.host.die(world.host.live()[0])
        await reach(patient, State.FAILED, within_s=100.0)
        assert (await patient.info()).num_restarts == 3
        assert world.host.containers == {}

    world.run(scenario)


def test_never_two_lives_at_once_although_the_old_one_cannot_be_removed(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(RESTORE)
        await sandbox.snapshot()
        world.host.faults.append(Fault("remove", times=3, error=lambda: HostUnavailable("500")))
        restoring = asyncio.create_task(sandbox.restore())
        while not restoring.done():
            assert len(world.host.live()) <= 1
            await asyncio.sleep(0.1)
        await restoring
        assert (await sandbox.exec("true")).generation == 2

    world.run(scenario)


def test_restore_by_its_user_is_no_news_to_him_and_costs_no_restart(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        with pytest.raises(SandboxNotFound):
            await sandbox.restore()
        await sandbox.exec("echo one > f")
        first = await sandbox.snapshot()
        await sandbox.exec("echo two > f")
        await sandbox.snapshot()
        call = asyncio.create_task((await manager.attach(sandbox.id)).exec("sleep 50"))
        await asyncio.sleep(0.1)
        await sandbox.restore(first.id)
        with pytest.raises(SandboxRestarted):
            await call
        assert (await sandbox.exec("cat f")).stdout == b"one"
        await sandbox.restore()
        assert (await sandbox.exec("cat f")).stdout == b"two"
        assert (await sandbox.info()).num_restarts == 0

    world.run(scenario)


def test_fork_starts_from_now_or_from_a_snapshot_and_outlives_its_origin(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.hosts["two"] = FakeDriver(endpoint="fake://two")
        manager = await world.manager()
        sandbox = await manager.create(RESTART, owner="ann")
        await sandbox.exec("echo one > f")
        first = await sandbox.snapshot()
        await sandbox.exec("echo two > f")
        forks = [await sandbox.fork(), await sandbox.fork(snapshot_id=first.id, key="past")]
        assert [(await fork.exec("cat f")).stdout for fork in forks] == [b"two", b"one"]
        assert {(await fork.info()).host for fork in forks} == {(await sandbox.info()).host}, "where the image lies"
        assert (await sandbox.fork(snapshot_id=first.id, key="past")).id == forks[1].id
        assert (await forks[0].info()).owner == "ann"
        host = world.hosts[(await sandbox.info()).host]
        await sandbox.delete()
        assert len(host.images) == 2, "the forks live on them"
        host.die(host.live(forks[1].id)[0])
        with pytest.raises(SandboxRestarted):
            await forks[1].exec("true")
        assert (await forks[1].exec("cat f")).stdout == b"one"
        for fork in forks:
            await fork.delete()
        assert host.images == {}
        assert await manager.snapshots() == []

    world.run(scenario)


def test_S17_twenty_snapshots_leave_five_images_and_orphaned_images_go(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        taken = [await sandbox.snapshot() for _ in range(20)]
        assert set(world.host.images) == {snapshot.image for snapshot in taken[-5:]}
        world.host.faults.append(Fault("commit", error=lambda: HostUnavailable("500"), lost_answer=True))
        with pytest.raises(HostUnavailable):
            await sandbox.snapshot()
        assert len(world.host.images) == 6
        assert await manager.reap() == []
        assert len(world.host.images) == 6
        assert len(await manager.prune_images()) == 1
        assert len(world.host.images) == 5

    world.run(scenario)


def test_a_paused_sandbox_takes_no_calls_and_goes_on_where_it_was(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        await sandbox.pause()
        await sandbox.pause()
        with pytest.raises(SandboxUnavailable) as caught:
            await sandbox.exec("true")
        assert caught.value.state == "STOPPED"
        await asyncio.sleep(60.0)
        assert (await sandbox.info()).state is State.STOPPED, "nobody probes it meanwhile"
        await sandbox.resume()
        await sandbox.resume()
        result = await sandbox.exec("echo hi")
        assert (result.ok, result.generation) == (True, 1)

    world.run(scenario)


def test_pausing_behind_the_managers_back_is_undone(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        await world.host.pause(world.host.live()[0])
        await asyncio.sleep(5.0)
        assert next(iter(world.host.containers.values())).status == "running"
        await sandbox.pause()
        await world.host.unpause(world.host.live()[0])
        await asyncio.sleep(5.0)
        assert next(iter(world.host.containers.values())).status == "paused"

    world.run(scenario)


def test_a_session_belongs_to_one_life(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(RESTART)
        session = await sandbox.session(env={"A": "1"})
        assert (await session.run("echo hi")).stdout == b"hi\n"
        running = asyncio.create_task(session.run("sleep 50"))
        await asyncio.sleep(0.1)
        world.host.die(world.host.live()[0])
        with pytest.raises(SandboxRestarted):
            await running
        await reach(sandbox, State.READY, within_s=5.0)
        with pytest.raises(SandboxRestarted):
            await session.run("echo hi")
        await session.close()
        await session.close()

    world.run(scenario)


def test_a_lost_connection_to_a_living_sandbox_is_made_anew(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        session = await sandbox.session()
        life = manager._fleet.boxes[sandbox.id].life
        await life.guest.close()
        with pytest.raises(SandboxUnavailable, match="connection"):
            await sandbox.exec("echo 1")
        assert (await sandbox.exec("echo 2")).generation == 1
        with pytest.raises(SandboxUnavailable, match="connection"):
            await session.run("echo 3")
        assert "connected" in kinds(await sandbox.events())

    world.run(scenario)


def test_stream_yields_output_then_the_result_and_leaving_ends_the_command(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        pieces = [piece async for piece in sandbox.stream("echo hi")]
        assert pieces[0] == Output("stdout", b"hi\n")
        assert isinstance(pieces[-1], ExecResult)
        stream = sandbox.stream("sleep 500")
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(1.0)
        assert len(next(iter(world.host.containers.values())).calls) == 1
        reading.cancel()
        await asyncio.wait([reading])
        assert len(next(iter(world.host.containers.values())).calls) == 0
        stream = sandbox.stream("sleep 500")
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(1.0)
        world.host.die(world.host.live()[0])
        with pytest.raises(SandboxUnavailable):
            await reading

    world.run(scenario)


def test_the_deadline_of_a_stream_does_not_run_while_its_reader_is_at_work(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        got = []
        async for piece in sandbox.stream("echo hi", timeout_s=1.0):
            got.append(piece)
            await asyncio.sleep(100.0)
        assert [type(piece) for piece in got] == [Output, ExecResult]

    world.run(scenario)


def test_a_call_that_is_never_answered_ends_by_its_deadline(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        world.host.faults.append(Fault("exec", delay_s=INF))
        with pytest.raises(DeadlineExceeded):
            await sandbox.exec("true", timeout_s=5)
        assert 5.0 < seconds() < 20.0
        assert (await sandbox.exec("sleep 9", timeout_s=2)).timed_out

    world.run(scenario)


def test_calls_wait_for_a_new_life_that_is_on_its_way(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.host.create_s = 3.0
        manager = await world.manager()
        sandbox = await manager.create(RESTART)
        world.host.die(world.host.live()[0])
        await reach(sandbox, State.RECOVERING, within_s=1.0)
        with pytest.raises(SandboxRestarted):
            await sandbox.exec("echo 1")
        assert (await sandbox.exec("echo 2")).generation == 2

    world.run(scenario)


def test_deleting_is_possible_at_any_time_and_ends_the_calls(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.host.create_s = 10.0
        manager = await world.manager()
        creating = asyncio.create_task(manager.create(SandboxSpec(), key="k"))
        await asyncio.sleep(1.0)
        (info,) = await manager.list_sandboxes()
        await (await manager.attach(info.id)).delete()
        with pytest.raises(SandboxUnavailable):
            await creating
        world.host.create_s = 1.0
        sandbox = await manager.create(RESTART)
        world.host.create_s = 1000.0
        world.host.die(world.host.live()[0])
        await reach(sandbox, State.RECOVERING, within_s=1.0)
        begin_s = seconds()
        await sandbox.delete()
        assert seconds() - begin_s < 1.0
        world.host.create_s = 0.0
        sandbox = await manager.create(SandboxSpec())
        call = asyncio.create_task(sandbox.exec("sleep 50"))
        await asyncio.sleep(1.0)
        await sandbox.delete()
        with pytest.raises(SandboxUnavailable) as caught:
            await call
        assert caught.value.state == "DELETED"
        with pytest.raises(SandboxNotFound):
            await manager.attach(sandbox.id)
        await asyncio.sleep(2000.0)
        assert world.host.live() == []
        assert (await manager.hosts())[0].num_sandboxes == 0

    world.run(scenario)


def test_whoever_writes_more_than_its_disk_limit_is_stopped_within_10_s(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        spec = SandboxSpec(disk_bytes=10 * MIB)
        modest, greedy = await manager.create(spec), await manager.create(spec)
        (name,) = world.host.live(greedy.id)
        world.host.containers[name].num_written_bytes = 11 * MIB
        await reach(greedy, State.FAILED, within_s=10.0)
        assert "bytes" in (await greedy.info()).message
        assert (await modest.exec("true")).ok
        assert world.host.live() == world.host.live(modest.id)

    world.run(scenario)


async def _tar(name: str, data: bytes) -> AsyncIterator[bytes]:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    for start in range(0, len(archive.getvalue()), 4096):
        yield archive.getvalue()[start : start + 4096]


def test_archives_go_in_and_out_and_the_sandbox_may_die_meanwhile(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        await sandbox.put_archive(_tar("a.txt", b"x" * 9000), "folder")
        assert await sandbox.read("folder/a.txt") == b"x" * 9000
        with pytest.raises(UnsafePath, match="larger"):
            await sandbox.read("folder/a.txt", max_bytes=100)
        with pytest.raises(NoSuchPath):
            await sandbox.read("/nothing")
        archive = sandbox.get_archive("/work/folder")
        async for _ in archive:
            world.host.die(world.host.live()[0])
            break
        await archive.aclose()
        with pytest.raises(SandboxUnavailable):
            await sandbox.read("folder/a.txt")

    world.run(scenario)


def test_files_and_folders_of_this_machine_in_wall_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with Manager({"one": FakeDriver()}, tmp_path / "store") as manager:
            sandbox = await manager.create(SandboxSpec())
            (tmp_path / "tree" / "sub").mkdir(parents=True)
            (tmp_path / "tree" / "sub" / "a.txt").write_text("hello")
            await sandbox.put(tmp_path / "tree", "copy")
            assert await sandbox.read("/work/copy/sub/a.txt") == b"hello"
            await sandbox.put(b"bytes", "/data/b.bin")
            await sandbox.get("/data/b.bin", tmp_path / "b.bin")
            assert (tmp_path / "b.bin").read_bytes() == b"bytes"

    asyncio.run(main())


def test_commands_are_scripted_by_a_callable(world: Any) -> None:
    def answer(request: ExecRequest) -> ExecResult | None:
        return ExecResult(42, stdout=b"scripted") if request.command == ("make", "test") else None

    async def scenario(world: Any) -> None:
        world.host.commands = answer
        manager = await world.manager(Settings(grace_s=1.0))
        sandbox = await manager.create(SandboxSpec())
        result = await sandbox.exec(["make", "test"])
        assert (result.exit_code, result.stdout, result.ok) == (42, b"scripted", False)
        assert (await sandbox.exec("echo other")).stdout == b"other\n"

    world.run(scenario)
