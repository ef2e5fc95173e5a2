"""What the tests of cases S1 to S20 share: a manager on a real daemon, in this process or in one that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcage.sandbox.chaos.keeper import Keeper
from rollcage.sandbox.client.client import Client
from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.drivers.docker_api import Engine
from rollcage.sandbox.errors import SandboxError
from rollcage.sandbox.manager.fleet import Settings
from rollcage.sandbox.manager.manager import Manager

QUICK = Settings(reconcile_s=0.5, sweep_s=0.3, images_s=1.0, status_s=1.0, backoff_s=0.2, grace_s=3.0)
"""Looks often, so that tests need not wait."""


@dataclass
class Real:
    """A real daemon, and the label of all that a test makes on it: what it leaves there makes it fail."""

    endpoint: str
    image: str
    bare_image: str
    folder: Path
    manager_id: str

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.folder / "id").write_text(self.manager_id)

    @contextlib.asynccontextmanager
    async def managed(
        self, settings: Settings = QUICK, *, endpoint: str = "", hosts: dict[str, Any] | None = None, **driver: Any
    ) -> AsyncIterator[Manager]:
        """A manager in this process; at the end its sandboxes are deleted."""
        drivers = hosts or {"here": DockerDriver(endpoint or self.endpoint, **driver)}
        async with Manager(drivers, self.folder, settings=settings) as manager:
            try:
                yield manager
            finally:
                for info in await manager.list_sandboxes():
                    await (await manager.attach(info.id)).delete()
                async with asyncio.timeout(20.0):
                    while await self.containers():
                        await manager.reap()

    @contextlib.asynccontextmanager
    async def kept(self, endpoint: str = "") -> AsyncIterator[tuple[Keeper, Client]]:
        """A manager in a process of its own; at the end its sandboxes are deleted."""
        keeper = Keeper(self.folder, endpoint or self.endpoint)
        try:
            await keeper.start()
            async with keeper.client() as client:
                yield keeper, client
                for info in await client.list_sandboxes():
                    await (await client.attach(info.id)).delete()
                async with asyncio.timeout(20.0):
                    while await self.containers():
                        await client.reap()
        finally:
            assert await keeper.stop() == 0, keeper.log_tail()

    async def containers(self) -> list[str]:
        """Return the names of the containers that there are, as the daemon itself says."""
        async with self.driver() as driver:
            return [each.name for each in await driver.list_containers(self.manager_id)]

    async def kill(self, container: str) -> None:
        """Kill a container behind the manager's back."""
        async with self.driver() as driver:
            await driver.kill(container)

    async def top(self, container: str) -> list[str]:
        """Return the commands that run in a container, as the daemon itself says."""
        engine = Engine(self.endpoint)
        try:
            async with engine.call("show processes") as docker:
                return [row[-1] for row in (await docker._query_json(f"containers/{container}/top"))["Processes"]]
        finally:
            await engine.close()

    @contextlib.asynccontextmanager
    async def driver(self) -> AsyncIterator[DockerDriver]:
        """A driver beside the manager's."""
        driver = DockerDriver(self.endpoint)
        try:
            yield driver
        finally:
            await driver.close()


async def until(holds: Callable[[], Awaitable[bool]], timeout_s: float = 10.0) -> float:
    """Wait until something holds; returns how long that took, in seconds."""
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    async with asyncio.timeout(timeout_s):
        while not await holds():
            await asyncio.sleep(0.05)
    return loop.time() - begin_s


async def error_of(work: Awaitable[Any]) -> SandboxError:
    """Return the error that something raises."""
    try:
        value = await work
    except SandboxError as error:
        return error
    raise AssertionError(f"no error, but {value}")
