"""One manager ends, or is killed, and the next one takes over."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollcage.errors import RollcageError, UserError
from rollcage.sandbox import RestartPolicy, SandboxNotFound, SandboxSpec, SandboxUnavailable, State
from rollcage.sandbox.drivers.base import LABEL_MANAGER, LABEL_SANDBOX, Container
from rollcage.sandbox.drivers.fake import Behaviour, FakeDriver
from rollcage.sandbox.manager.fleet import Settings
from rollcage.sandbox.manager.manager import Manager


def seconds() -> float:
    return asyncio.get_running_loop().time()


def test_S7_after_a_kill_the_same_ids_are_usable_and_the_unleased_go_by_their_ttl(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        made = [await manager.create(SandboxSpec(ttl_s=60), key=f"k{i}") for i in range(10)]
        await made[0].exec("echo kept > f")
        await world.kill(manager)
        assert len(world.host.live()) == 10
        manager = await world.manager()
        assert [info.id for info in await manager.list_sandboxes()] == [sandbox.id for sandbox in made]
        for old in made:
            sandbox = await manager.attach(old.id)
            assert (await sandbox.exec("echo hi")).generation == 1
        assert (await (await manager.attach(made[0].id)).exec("cat f")).stdout == b"kept"
        assert (await manager.create(SandboxSpec(ttl_s=60), key="k3")).id == made[3].id
        assert (await manager.hosts())[0].num_sandboxes == 10
        await (await manager.attach(made[0].id)).renew(1000)
        await asyncio.sleep(62.0)
        assert [info.id for info in await manager.list_sandboxes()] == [made[0].id]
        assert len(world.host.containers) == 1

    world.run(scenario)


def test_a_manager_that_closes_leaves_its_sandboxes_to_the_next(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        paused = await manager.create(SandboxSpec())
        await paused.pause()
        call = asyncio.create_task(sandbox.exec("sleep 50"))
        await asyncio.sleep(1.0)
        await manager.close()
        await manager.close()
        with pytest.raises(SandboxUnavailable, match="closed"):
            await call
        with pytest.raises(SandboxUnavailable, match="closed"):
            await sandbox.exec("true")
        with pytest.raises(RollcageError, match="closed"):
            await manager.create(SandboxSpec())
        manager = await world.manager()
        assert (await (await manager.attach(sandbox.id)).exec("true")).ok
        frozen = await manager.attach(paused.id)
        assert (await frozen.info()).state is State.STOPPED
        await frozen.resume()
        assert (await frozen.exec("true")).ok

    world.run(scenario)


def test_S8_a_lease_that_is_renewed_in_time_holds_over_a_restart(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec(ttl_s=2))
        for turn in range(31):
            await asyncio.sleep(1.9)
            await sandbox.renew()
            assert len(world.host.live()) == 1
            if turn == 15:
                await world.kill(manager)
                manager = await world.manager()
                sandbox = await manager.attach(sandbox.id)
        last_s = seconds()
        while world.host.containers:
            assert seconds() - last_s < 2.0 + 1.5, "gone one sweep after its end"
            await asyncio.sleep(0.1)
        assert seconds() - last_s >= 2.0
        with pytest.raises(SandboxNotFound):
            await manager.attach(sandbox.id)

    world.run(scenario)


@pytest.mark.parametrize(("away_s", "lives"), [(1.5, True), (4.0, True), (60.0, False)])
def test_S8_a_lease_that_ended_while_no_manager_ran_can_be_renewed_if_that_was_not_long(
    world: Any, away_s: float, lives: bool
) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec(ttl_s=2))
        await world.kill(manager)
        await asyncio.sleep(away_s)
        manager = await world.manager()
        opened_s = seconds()
        await asyncio.sleep(1.8)
        assert len(world.host.containers) == lives
        if lives:
            await (await manager.attach(sandbox.id)).renew(10)
            await asyncio.sleep(9.0)
            assert (await (await manager.attach(sandbox.id)).exec("true")).ok
        while world.host.containers:
            assert seconds() - opened_s < 15.0
            await asyncio.sleep(0.1)

    world.run(scenario)


def test_managers_that_die_one_after_the_other_do_not_keep_what_nobody_renews(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        await manager.create(SandboxSpec(ttl_s=60))
        kept = await manager.create(SandboxSpec(ttl_s=60))
        for _ in range(18):
            await (await manager.attach(kept.id)).renew(0)
            await asyncio.sleep(4.0)
            await world.kill(manager)
            manager = await world.manager()
        await asyncio.sleep(8.0)
        assert [info.id for info in await manager.list_sandboxes()] == [kept.id], "the other one was gone in time"

    world.run(scenario)


@pytest.mark.parametrize("kill_at_s", [0.5, 1.5])
def test_S6_a_kill_during_a_creation_leaves_nothing_after_reconciliation(world: Any, kill_at_s: float) -> None:
    async def scenario(world: Any) -> None:
        world.host.create_s = 1.0
        world.host.behave = lambda container: Behaviour(ready_after_s=100.0)
        manager = await world.manager()
        spec = SandboxSpec(ready_command="ready")
        creating = [asyncio.create_task(manager.create(spec)) for _ in range(5)]
        await asyncio.sleep(kill_at_s)
        await world.kill(manager)
        await asyncio.gather(*creating, return_exceptions=True)
        manager = await world.manager()
        await asyncio.sleep(10.0)
        assert len(world.host.created) == 5
        assert world.host.containers == {}
        assert await manager.list_sandboxes() == []

    world.run(scenario)


def test_what_died_while_nobody_managed_is_handled_by_its_policy(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        fails = await manager.create(SandboxSpec())
        restarts = await manager.create(SandboxSpec(restart=RestartPolicy.RESTART))
        await world.kill(manager)
        for name in world.host.live():
            world.host.die(name, 5)
        manager = await world.manager()
        await asyncio.sleep(10.0)
        infos = {info.id: info for info in await manager.list_sandboxes()}
        assert (infos[fails.id].state, infos[fails.id].exit_code) == (State.FAILED, 5)
        assert (infos[restarts.id].state, infos[restarts.id].generation) == (State.READY, 2)
        assert len(world.host.containers) == 1

    world.run(scenario)


def test_a_new_life_that_a_kill_interrupted_is_finished(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec(restart=RestartPolicy.RESTART))
        world.host.create_s = 3.0
        world.host.die(world.host.live()[0])
        await asyncio.sleep(1.0)
        assert (await sandbox.info()).state is State.RECOVERING
        await world.kill(manager)
        manager = await world.manager()
        await asyncio.sleep(15.0)
        sandbox = await manager.attach(sandbox.id)
        assert (await sandbox.exec("true")).generation == 2
        assert len(world.host.containers) == 1

    world.run(scenario)


def test_a_deletion_that_a_kill_interrupted_is_finished(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        world.host.down = True
        await sandbox.delete()
        await world.kill(manager)
        assert len(world.host.live()) == 1
        world.host.down = False
        manager = await world.manager()
        await asyncio.sleep(10.0)
        assert world.host.containers == {}
        assert await manager.list_sandboxes() == []

    world.run(scenario)


def test_a_lost_database_is_rebuilt_from_labels(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec(ttl_s=100, labels={"a": "b"}), key="k", owner="ann")
        dead = await manager.create(SandboxSpec())
        before = await sandbox.info()
        await world.kill(manager)
        world.host.die(world.host.live(dead.id)[0])
        for file in world.folder.glob("manager.db*"):
            file.unlink()
        manager = await world.manager()
        await asyncio.sleep(5.0)
        (info,) = await manager.list_sandboxes()
        assert (info.id, info.key, info.owner, info.spec) == (before.id, "k", "ann", before.spec)
        assert info.created_at == before.created_at
        assert (await (await manager.attach(info.id)).exec("true")).ok
        assert (await manager.create(before.spec, key="k")).id == before.id
        assert len(world.host.containers) == 1, "the dead one went"
        await asyncio.sleep(101.0)
        assert world.host.containers == {}

    world.run(scenario)


def test_one_row_that_cannot_be_read_is_rebuilt_and_harms_no_other(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        made = [await manager.create(SandboxSpec()) for _ in range(2)]
        await made[0].exec("echo kept > f")
        record = manager._store.rows()[0].to_json().replace('"owner"', '"of another version"')
        manager._store._db.execute("UPDATE sandboxes SET record = ? WHERE id = ?", (record, made[0].id))
        await world.kill(manager)
        manager = await world.manager()
        await asyncio.sleep(5.0)
        assert {info.id for info in await manager.list_sandboxes()} == {sandbox.id for sandbox in made}
        assert (await (await manager.attach(made[0].id)).exec("cat f")).stdout == b"kept"
        assert [event.sandbox_id for event in await manager.events() if event.kind == "unreadable"] == [made[0].id]

    world.run(scenario)


def test_a_damaged_database_is_put_aside_and_rebuilt(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        await manager.close()
        (world.folder / "manager.db").write_bytes(b"no database at all" * 1000)
        manager = await world.manager()
        await asyncio.sleep(5.0)
        assert (await (await manager.attach(sandbox.id)).exec("true")).ok
        assert (world.folder / "manager.db.damaged").exists()

    world.run(scenario)


def test_containers_of_this_store_that_have_no_right_to_be_there_go_and_strangers_stay(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        mine = manager._store.id
        for name, store, sandbox_id in (
            ("unknown", mine, "0123"),
            (f"rollcage-{sandbox.id}-7", mine, sandbox.id),
            ("stranger", "other", "0123"),
        ):
            labels = {LABEL_MANAGER: store, LABEL_SANDBOX: sandbox_id}
            await world.host.create(Container(name, SandboxSpec(), labels=labels))
        await asyncio.sleep(10.0)
        assert set(world.host.containers) == {*world.host.live(sandbox.id), "stranger"}
        assert world.host.live(sandbox.id) == [f"rollcage-{sandbox.id}-1"]
        orphans = [event.data["container"] for event in await manager.events() if event.kind == "orphan"]
        assert sorted(orphans) == sorted(["unknown", f"rollcage-{sandbox.id}-7"])

    world.run(scenario)


def test_a_daemon_that_restarts_loses_no_sandbox(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec(ttl_s=0))
        world.host.down = True
        world.host.break_events()
        await asyncio.sleep(100.0)
        assert [host.condition for host in await manager.hosts()] == ["quarantined"]
        assert (await sandbox.info()).state is State.READY
        world.host.down = False
        await asyncio.sleep(100.0)
        assert [host.condition for host in await manager.hosts()] == ["open"]
        assert (await sandbox.exec("true")).generation == 1
        world.host.die(world.host.live()[0])
        await asyncio.sleep(0.1)
        assert (await sandbox.info()).state is State.FAILED, "the event stream is back"

    world.run(scenario)


def test_a_container_of_a_sandbox_that_history_has_forgotten_is_removed_not_revived(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.hosts["two"] = FakeDriver(endpoint="fake://two", clock=world.host._clock)
        settings = Settings(history_s=100.0)
        manager = await world.manager(settings)
        made = [await manager.create(SandboxSpec(ttl_s=0)) for _ in range(2)]
        (away,) = [sandbox for sandbox in made if (await sandbox.info()).host == "two"]
        world.hosts["two"].down = True
        await away.delete()
        await world.kill(manager)
        manager = await world.manager(settings)
        await asyncio.sleep(300.0)
        assert await manager.events() == [], "all of it is older than history_s"
        world.hosts["two"].down = False
        await asyncio.sleep(100.0)
        assert world.hosts["two"].containers == {}
        (info,) = await manager.list_sandboxes()
        assert info.host == "one"
        assert (await (await manager.attach(info.id)).exec("true")).ok

    world.run(scenario)


def test_one_manager_a_folder(tmp_path: Path) -> None:
    async def main() -> None:
        async with Manager({"one": FakeDriver()}, tmp_path) as first:
            with pytest.raises(UserError, match=f"process {os.getpid()}"):
                Manager({"one": FakeDriver()}, tmp_path)
            await first.create(SandboxSpec())
        async with Manager({"one": FakeDriver()}, tmp_path) as second:
            assert len(await second.list_sandboxes()) == 1
        with pytest.raises(UserError, match="host"):
            Manager({}, tmp_path)

    asyncio.run(main())


WRITER = """
import sys
from pathlib import Path
from rollcage.sandbox.manager.store import Row, Store
from rollcage.sandbox.types import SandboxInfo, SandboxSpec, State
store = Store(Path(sys.argv[1]))
for number in range(10**9):
    info = SandboxInfo(f"{number:09}", "", "", SandboxSpec(), "one", State.READY, 1, float(number))
    store.save(Row(info), "created")
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


def test_a_store_survives_a_kill_of_its_process_with_all_that_was_acknowledged(tmp_path: Path) -> None:
    from rollcage.sandbox.manager.store import Store

    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for line in writer.stdout:
        if int(line) >= 200:
            break
    writer.send_signal(signal.SIGKILL)
    acknowledged = [int(line) for line in writer.stdout.read().splitlines() if line]
    writer.wait()
    writer.stdout.close()
    store = Store(tmp_path)
    rows, events = store.rows(), store.events()
    store.close()
    assert len(rows) >= max([200, *acknowledged]) + 1
    assert len(events) == len(rows), "each with its event"
