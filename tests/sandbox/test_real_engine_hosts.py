"""Two real daemons under one manager: sandboxes are shared out, leave a host that dies, and have one life each."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sandbox.real_engine import QUICK, Real, error_of, until

from rollcage.sandbox.base import Sandbox
from rollcage.sandbox.chaos.own_daemon import OwnDaemon
from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.errors import HostUnavailable, SandboxRestarted
from rollcage.sandbox.images.bare import build_bare
from rollcage.sandbox.manager.fleet import Settings
from rollcage.sandbox.manager.manager import Manager
from rollcage.sandbox.types import RestartPolicy, SandboxSpec, State

MOVING = replace(QUICK, move_after_s=2.0)


@pytest.fixture
def real(docker_endpoint: str, manager_id: str, base_image: str, bare_image: str, tmp_path: Path) -> Real:
    return Real(docker_endpoint, base_image, bare_image, tmp_path / "store", manager_id)


class Two:
    """A manager on the shared daemon, as "here", and on one that may be killed, as "there"."""

    def __init__(self, real: Real, daemon: OwnDaemon, manager: Manager) -> None:
        self.real, self.daemon, self.manager = real, daemon, manager

    async def create(self, host: str, restart: RestartPolicy = RestartPolicy.FAIL) -> Sandbox:
        """Create a sandbox on that host."""
        other = {"here": "there", "there": "here"}[host]
        await self.manager.drain(other)
        box = await self.manager.create(SandboxSpec(image=self.real.bare_image, restart=restart, memory_bytes=64 << 20))
        await self.manager.drain(other, on=False)
        assert (await box.info()).host == host
        return box

    async def left_there(self) -> list[str]:
        """Return the containers and snapshots on the second daemon, as it says itself."""
        driver = DockerDriver(self.daemon.endpoint)
        try:
            containers = await driver.list_containers(self.real.manager_id)
            return [each.name for each in containers] + await driver.list_images(self.real.manager_id)
        finally:
            await driver.close()

    async def condition(self, host: str) -> str:
        """Return a host's condition, as the manager says it."""
        return {info.name: info.condition for info in await self.manager.hosts()}[host]

    async def becomes(self, box: Sandbox, state: State, host: str, timeout_s: float = 20.0) -> None:
        """Wait until a sandbox is in that state on that host."""

        async def holds() -> bool:
            info = await box.info()
            return (info.state, info.host) == (state, host)

        await until(holds, timeout_s)


@contextlib.asynccontextmanager
async def two_daemons(real: Real, settings: Settings = MOVING) -> AsyncIterator[Two]:
    """A manager over both; at the end nothing of it is on either."""
    with tempfile.TemporaryDirectory(prefix="rollcage-d-") as folder:  # short: it holds unix sockets
        async with OwnDaemon(Path(folder) / "d") as daemon:
            await build_bare(daemon.endpoint)
            hosts = {"here": DockerDriver(real.endpoint), "there": DockerDriver(daemon.endpoint)}
            async with real.managed(settings, hosts=hosts) as manager:
                two = Two(real, daemon, manager)
                yield two
                for info in await manager.list_sandboxes():
                    await (await manager.attach(info.id)).delete()

                async def is_clean() -> bool:
                    return await two.left_there() == []

                await until(is_clean, 20.0)  # what its breaker held back goes with the next look


def test_a_sandbox_leaves_a_daemon_that_is_killed_and_its_old_life_goes_when_that_is_back(real: Real) -> None:
    async def main() -> None:
        async with two_daemons(real) as two:
            box = await two.create("there", RestartPolicy.RESTORE)
            await box.put(b"lost with its host", "file")
            await two.daemon.kill()
            await two.becomes(box, State.READY, "here")
            assert isinstance(await error_of(box.exec("true")), SandboxRestarted), "never silently"
            info = await box.info()
            assert (await box.exec("echo lives; test ! -e file")).stdout == b"lives\n"
            (moved,) = [event for event in await box.events() if event.kind == "moved"]
            assert (moved.data["from"], moved.data["to"]) == ("there", "here")
            assert await two.condition("there") == "quarantined"

            await two.daemon.start()

            async def is_alone() -> bool:
                return await two.left_there() == [] and await two.condition("there") == "open"

            await until(is_alone, 20.0)
            assert await real.containers() == [f"rollcage-{box.id}-{info.generation}"]
            assert await box.info() == info, "the life that counts was not touched"
            assert (await box.exec("echo lives")).stdout == b"lives\n"
            assert [host.num_sandboxes for host in await two.manager.hosts()] == [1, 0]

    asyncio.run(main())


def test_a_snapshot_that_lies_on_a_killed_daemon_is_waited_for_and_that_is_said(real: Real) -> None:
    async def main() -> None:
        async with two_daemons(real) as two:
            box = await two.create("there", RestartPolicy.RESTORE)
            await box.put(b"kept", "file")
            await box.snapshot()
            await two.daemon.kill()

            async def is_told() -> bool:
                return "lies on no other" in (await box.info()).message

            await until(is_told, 15.0)
            info = await box.info()
            assert info.state is State.RECOVERING
            assert "host 'there' has not answered" in info.message
            await two.daemon.start()
            await two.becomes(box, State.READY, "there")
            assert isinstance(await error_of(box.exec("true")), SandboxRestarted)
            assert await box.read("file") == b"kept"
            assert len(await two.left_there()) == 2, "one life, one snapshot"
            await box.delete()

    asyncio.run(main())


def test_deleted_while_its_daemon_is_dead_a_sandbox_does_not_come_back_with_it(real: Real) -> None:
    async def main() -> None:
        async with two_daemons(real) as two:
            box = await two.create("there", RestartPolicy.RESTORE)
            await box.snapshot()
            await two.daemon.kill()
            await box.delete()
            assert (await box.info()).state is State.DELETED
            await two.daemon.start()

            async def is_empty() -> bool:
                return await two.left_there() == []

            await until(is_empty, 20.0)
            assert [host.num_sandboxes for host in await two.manager.hosts()] == [0, 0]

    asyncio.run(main())


def test_sandboxes_go_where_least_is_promised_and_never_to_a_host_that_is_drained_or_quarantined(real: Real) -> None:
    async def main() -> None:
        async with two_daemons(real) as two:
            spec = SandboxSpec(image=real.bare_image, memory_bytes=64 << 20)
            boxes = await asyncio.gather(*(two.manager.create(spec) for _ in range(6)))
            assert sorted([(await box.info()).host for box in boxes]) == ["here"] * 3 + ["there"] * 3

            large = await two.manager.create(replace(spec, memory_bytes=1 << 30))
            its_host = (await large.info()).host
            others = [await two.manager.create(spec) for _ in range(3)]
            assert its_host not in {(await box.info()).host for box in others}, "measured by what is promised"

            await two.manager.drain("here")
            assert (await (await two.manager.create(spec)).info()).host == "there"
            for box in boxes:
                assert (await box.exec("true")).ok, "those that are there go on"
            await two.daemon.kill()
            error = await error_of(two.manager.create(spec, deadline_s=1.0))
            assert isinstance(error, HostUnavailable)
            await two.manager.drain("here", on=False)
            found = await asyncio.gather(*(two.manager.create(spec) for _ in range(3)))
            assert {(await box.info()).host for box in found} == {"here"}
            assert await two.condition("there") == "quarantined"
            await two.daemon.start()

    asyncio.run(main())


def test_sandboxes_go_where_less_is_computed_when_as_much_is_promised(real: Real) -> None:
    async def main() -> None:
        async with two_daemons(real) as two:
            busy = await two.create("here")
            idle = await two.create("there")
            burning = asyncio.create_task(busy.exec("while :; do :; done", timeout_s=60.0))
            spec = SandboxSpec(image=real.bare_image, memory_bytes=64 << 20)

            async def is_seen() -> bool:
                return {info.name: info.load > 0.2 for info in await two.manager.hosts()} == {
                    "here": True,
                    "there": False,
                }

            await until(is_seen, 30.0)
            found = [await two.manager.create(spec) for _ in range(2)]
            assert [(await box.info()).host for box in found] == ["there", "there"]
            burning.cancel()
            await asyncio.wait([burning])
            await busy.delete()

            async def is_quiet() -> bool:
                return all(info.load < 0.2 for info in await two.manager.hosts())

            await until(is_quiet, 20.0)
            assert (await (await two.manager.create(spec)).info()).host == "here"
            await idle.delete()

    asyncio.run(main())
