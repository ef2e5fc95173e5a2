"""Pipes into containers that nobody needs any more, and those into a daemon that dies: their sockets are closed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.sandbox.drivers.docker_rig import Rig
from tests.sandbox.real_engine import QUICK, until

from rollcage.sandbox.chaos.own_daemon import OwnDaemon
from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.drivers.docker_exec import ExecPipe
from rollcage.sandbox.errors import SandboxError
from rollcage.sandbox.manager.manager import Manager
from rollcage.sandbox.types import RestartPolicy, SandboxSpec

OnDocker = Callable[[Callable[[Rig], Coroutine[Any, Any, None]]], None]


def num_sockets() -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return found


async def fewer_than(limit: int) -> bool:
    return num_sockets() < limit


async def is_open(manager: Manager) -> bool:
    return all(host.condition == "open" for host in await manager.hosts())


def test_a_pipe_that_nobody_reads_inside_is_let_go_at_once(on_docker: OnDocker, bare_image: str) -> None:
    async def scenario(rig: Rig) -> None:
        box, engine = await rig.start(SandboxSpec(image=bare_image)), rig.driver._engine
        async with engine.call("start a command") as docker:
            pipe = await ExecPipe.open(docker, engine.frost, box.name, ("sleep", "60"), stdin=True)
        writing = asyncio.create_task(pipe.write(b"x" * (32 << 20)))
        _, is_stuck = await asyncio.wait([writing], timeout=1.0)
        assert is_stuck, "its buffers are full"
        writing.cancel()
        await asyncio.wait([writing])
        with_pipe = num_sockets()
        await pipe.close()
        await until(lambda: fewer_than(with_pipe), 3.0)

    on_docker(scenario)


def test_a_shell_that_somebody_still_holds_goes_with_its_guest(on_docker: OnDocker, bare_image: str) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=bare_image))
        shell = await box.guest.open_session(env={}, cwd="")
        with_pipe = num_sockets()
        await box.guest.close()
        await until(lambda: fewer_than(with_pipe), 3.0)
        await shell.close()

    on_docker(scenario)


def test_a_daemon_that_dies_again_and_again_costs_no_sockets(docker_endpoint: str, bare_image: str) -> None:
    untold: list[str] = []

    async def outcome(work: Coroutine[Any, Any, Any]) -> None:
        with contextlib.suppress(SandboxError):
            await work

    async def main(folder: Path) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: untold.append(str(context)))
        async with OwnDaemon(folder / "d") as daemon:
            await daemon.copy_image(docker_endpoint, bare_image)
            hosts = {"own": DockerDriver(daemon.endpoint, call_timeout_s=5.0)}
            async with Manager(hosts, folder / "m", settings=QUICK) as manager:
                spec = SandboxSpec(image=bare_image, restart=RestartPolicy.RESTART, max_restarts=100)
                await (await manager.create(spec)).delete()
                before = num_sockets()
                for _ in range(5):
                    await until(lambda: is_open(manager), 25.0)
                    box = await manager.create(spec, deadline_s=40.0)
                    shell = await box.session()
                    calls = (box.exec("sleep 60"), shell.run("sleep 60"), box.put(b"x" * (8 << 20), "big"))
                    working = [asyncio.create_task(outcome(call)) for call in calls]
                    await asyncio.sleep(0.3)
                    await daemon.restart()
                    await asyncio.gather(*working)
                    await outcome(box.delete())
                await until(lambda: fewer_than(before + 1), 25.0)  # what is kept for the next call goes after 15 s

    with tempfile.TemporaryDirectory(prefix="rollcage-p-") as folder:  # short: it holds unix sockets
        asyncio.run(main(Path(folder)))
    assert not untold
