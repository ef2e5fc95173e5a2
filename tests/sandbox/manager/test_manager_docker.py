"""The manager against a real daemon: the promises that fakes could fake."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rollcage.sandbox import (
    Probe,
    RestartPolicy,
    SandboxRestarted,
    SandboxSpec,
    SandboxUnavailable,
    StartFailed,
    StartTimeout,
    State,
)
from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.manager.manager import Manager
from rollcage.sandbox.types import MIB

Scenario = Callable[[Manager, DockerDriver], Awaitable[None]]
Run = Callable[[Scenario], None]


@pytest.fixture
def folder(tmp_path: Path, manager_id: str) -> Path:
    """A store's folder, whose id the daemon is swept for when the test ends."""
    (tmp_path / "id").write_text(manager_id)
    return tmp_path


@pytest.fixture
def run(folder: Path, docker_endpoint: str, base_image: str) -> Run:
    """Run a scenario with a manager of a real daemon, and delete its sandboxes."""

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            driver = DockerDriver(docker_endpoint)
            async with Manager({"here": driver}, folder) as manager:
                try:
                    await scenario(manager, driver)
                finally:
                    for info in await manager.list_sandboxes():
                        await (await manager.attach(info.id)).delete()
                    await manager.reap()

        asyncio.run(main())

    return run


async def reach(sandbox: object, state: State, within_s: float) -> None:
    ends_at = time.monotonic() + within_s
    while (info := await sandbox.info()).state is not state:  # type: ignore[attr-defined]
        assert time.monotonic() < ends_at, info
        await asyncio.sleep(0.05)


def test_create_exec_session_files_and_snapshots(run: Run, tmp_path: Path) -> None:
    async def scenario(manager: Manager, driver: DockerDriver) -> None:
        sandbox = await manager.create(SandboxSpec(env={"WHO": "me"}), key="k")
        result = await sandbox.exec("echo $WHO; id -u; exit 3")
        assert (result.stdout, result.exit_code, result.generation) == (b"me\n1000\n", 3, 1)
        pieces = [piece async for piece in sandbox.stream("echo out; echo err >&2")]
        assert {(piece.source, piece.data) for piece in pieces[:-1]} == {("stdout", b"out\n"), ("stderr", b"err\n")}
        session = await sandbox.session()
        await session.run("cd /tmp && X=1")
        assert (await session.run("echo $PWD $X")).stdout == b"/tmp 1\n"
        await session.close()
        (tmp_path / "tree").mkdir()
        (tmp_path / "tree" / "a.txt").write_text("hello")
        await sandbox.put(tmp_path / "tree", "copy")
        assert await sandbox.read("copy/a.txt") == b"hello"
        await sandbox.get("/work/copy", tmp_path / "back")
        assert (tmp_path / "back" / "a.txt").read_text() == "hello"
        fork = await sandbox.fork()
        assert await fork.read("copy/a.txt") == b"hello"
        await sandbox.pause()
        with pytest.raises(SandboxUnavailable):
            await sandbox.exec("true")
        await sandbox.resume()
        assert (await sandbox.exec("true")).ok

    run(scenario)


def test_S10_a_killed_sandbox_is_restored_within_5_s_with_its_checkpointed_files(run: Run) -> None:
    async def scenario(manager: Manager, driver: DockerDriver) -> None:
        sandbox = await manager.create(SandboxSpec(restart=RestartPolicy.RESTORE))
        await sandbox.exec("echo checkpointed > notes")
        await sandbox.snapshot()
        await sandbox.exec("echo lost > notes")
        call = asyncio.create_task(sandbox.exec("sleep 50"))
        await asyncio.sleep(0.5)
        begin_s = time.monotonic()
        await driver.kill(f"rollcage-{sandbox.id}-1")
        with pytest.raises(SandboxRestarted):
            await call
        result = await sandbox.exec("cat notes")
        assert (result.stdout, result.generation) == (b"checkpointed\n", 2)
        assert time.monotonic() - begin_s < 5.0

    run(scenario)


def test_S10_what_hangs_is_found_out_within_10_s_and_restored_within_5_s_more(run: Run) -> None:
    async def scenario(manager: Manager, driver: DockerDriver) -> None:
        sandbox = await manager.create(SandboxSpec(restart=RestartPolicy.RESTORE))
        await sandbox.exec("echo checkpointed > notes")
        await sandbox.snapshot()
        call = asyncio.create_task(sandbox.exec("kill -STOP -1", timeout_s=60))  # the agent, too; the container runs on
        begin_s = time.monotonic()
        with pytest.raises(SandboxRestarted):
            await call
        assert time.monotonic() - begin_s < 10.0
        await reach(sandbox, State.READY, within_s=5.0)
        result = await sandbox.exec("cat notes")
        assert (result.stdout, result.generation) == (b"checkpointed\n", 2)

    run(scenario)


def test_S9_a_main_process_that_is_killed_for_memory_says_so(run: Run) -> None:
    async def scenario(manager: Manager, driver: DockerDriver) -> None:
        greedy = "import time; time.sleep(1); b = bytearray(200 * 2**20)"
        sandbox = await manager.create(SandboxSpec(command=("python3", "-c", greedy), memory_bytes=64 * MIB))
        await reach(sandbox, State.FAILED, within_s=15.0)
        info = await sandbox.info()
        assert (info.exit_code, info.oom_killed) == (137, True)
        assert info.message.endswith("(killed for memory)")

    run(scenario)


def test_S9_a_dead_sandbox_says_how_it_died(run: Run) -> None:
    async def scenario(manager: Manager, driver: DockerDriver) -> None:
        command = ("sh", "-c", "echo last words; exec sleep 1000")
        sandbox = await manager.create(SandboxSpec(command=command))
        await driver.kill(f"rollcage-{sandbox.id}-1")
        with pytest.raises(SandboxUnavailable) as caught:
            await sandbox.exec("true")
        error = caught.value
        assert (error.state, error.exit_code, error.oom_killed) == ("FAILED", 137, False)
        assert error.log_tail.strip() == "last words"
        assert await driver.inspect(f"rollcage-{sandbox.id}-1") is None

    run(scenario)


def test_S9_without_its_programs_a_sandbox_becomes_unhealthy(run: Run) -> None:
    async def scenario(manager: Manager, driver: DockerDriver) -> None:
        sandbox = await manager.create(SandboxSpec(user="0:0", probe=Probe(interval_s=0.5, timeout_s=2)))
        await sandbox.exec("rm -rf /bin /usr/bin", timeout_s=20)
        await reach(sandbox, State.UNHEALTHY, within_s=15)

    run(scenario)


def test_S5_and_S6_what_does_not_start_leaves_nothing(run: Run) -> None:
    async def scenario(manager: Manager, driver: DockerDriver) -> None:
        loud = SandboxSpec(
            command=("sh", "-c", "head -c 1048576 /dev/zero | tr '\\0' x; echo; echo the end; sleep 1000"),
            ready_command="test -e /ready",
            start_timeout_s=3.0,
        )
        begin_s = time.monotonic()
        bad, good, nope = await asyncio.gather(
            manager.create(loud),
            manager.create(SandboxSpec()),
            manager.create(SandboxSpec(command=("/nope",))),
            return_exceptions=True,
        )
        assert time.monotonic() - begin_s < 8.0
        assert isinstance(bad, StartTimeout)
        assert bad.log_tail.strip().endswith("the end")
        assert isinstance(nope, StartFailed)
        assert not isinstance(good, BaseException)
        assert (await good.exec("true")).ok
        left = await driver.list_containers(manager.store_id)
        assert [each.name for each in left] == [f"rollcage-{good.id}-1"]

    run(scenario)


CREATOR = """
import asyncio, sys
from rollcage.sandbox import Manager, SandboxSpec
from rollcage.sandbox.drivers.docker import DockerDriver

async def main():
    async with Manager({"here": DockerDriver(sys.argv[2])}, sys.argv[1]) as manager:
        made = [await manager.create(SandboxSpec(ttl_s=float(sys.argv[3])), key=str(i)) for i in range(3)]
        await made[0].exec("echo kept > f")
        for sandbox in made:
            sys.stdout.write(sandbox.id + "\\n")
        sys.stdout.flush()
        await asyncio.gather(*(manager.create(SandboxSpec()) for _ in range(50)), return_exceptions=True)

asyncio.run(main())
"""


def test_S7_after_kill_9_the_same_ids_are_usable_and_the_unleased_go(
    run: Run, folder: Path, docker_endpoint: str, base_image: str
) -> None:
    creator = subprocess.Popen(
        [sys.executable, "-c", CREATOR, str(folder), docker_endpoint, "60"], stdout=subprocess.PIPE, text=True
    )
    assert creator.stdout is not None
    ids = [creator.stdout.readline().strip() for _ in range(3)]
    time.sleep(0.4)  # now it is amid creations that nobody will ever ask for again
    os.kill(creator.pid, signal.SIGKILL)
    creator.wait()
    creator.stdout.close()

    async def scenario(manager: Manager, driver: DockerDriver) -> None:
        first, second, third = [await manager.attach(sandbox_id) for sandbox_id in ids]
        assert (await first.exec("cat f")).stdout == b"kept\n"
        assert (await second.exec("true")).generation == 1
        assert (await manager.create(SandboxSpec(ttl_s=60), key="1")).id == second.id
        await second.renew(2.0)
        await third.delete()
        await asyncio.sleep(6.0)
        ready = {info.id for info in await manager.list_sandboxes() if info.key and info.state is State.READY}
        assert ready == {first.id}
        for each in await driver.list_containers(manager.store_id):
            assert each.status == "running", "what was half created is gone"

    run(scenario)
