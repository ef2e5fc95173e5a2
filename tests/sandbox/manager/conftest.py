"""A world in virtual time: fake hosts that outlive the managers that come, go and are killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from rollcage.sandbox.drivers.base import HostEvent
from rollcage.sandbox.drivers.fake import FakeDriver
from rollcage.sandbox.errors import HostUnavailable
from rollcage.sandbox.manager.fleet import Settings
from rollcage.sandbox.manager.manager import Manager
from rollcage.trainer.clock import run_virtual

EPOCH = 1_700_000_000.0


def now() -> float:
    """Seconds since the epoch, in virtual time."""
    return EPOCH + asyncio.get_running_loop().time()


class Wire:
    """One manager's connection to a host. Once it is cut, whatever its manager still does reaches nobody; a creation
    that is under way then goes on at the host, as it does with a real daemon."""

    def __init__(self, driver: FakeDriver, under_way: list[asyncio.Task[Any]]) -> None:
        self._driver, self._under_way, self.is_cut = driver, under_way, False
        self.endpoint = driver.endpoint

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method = getattr(self._driver, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            if self.is_cut:
                raise HostUnavailable("the manager is dead")
            if name != "create":
                return await method(*arguments, **options)
            task = asyncio.create_task(method(*arguments, **options))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # its caller may be dead
            self._under_way.append(task)
            return await asyncio.shield(task)

        return call

    async def events(self, manager: str) -> AsyncIterator[HostEvent]:
        async for event in self._driver.events(manager):
            if not self.is_cut:
                yield event

    async def close(self) -> None:
        pass


class World:
    """Hosts, a folder, and managers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts = {"one": FakeDriver(clock=now)}
        self.recorder: Any = None
        self._wires: dict[Manager, list[Wire]] = {}
        self._under_way: list[asyncio.Task[Any]] = []

    @property
    def host(self) -> FakeDriver:
        """The only host."""
        (host,) = self.hosts.values()
        return host

    async def manager(self, settings: Settings | None = None) -> Manager:
        """Open a manager."""
        wires = {name: Wire(driver, self._under_way) for name, driver in self.hosts.items()}
        manager = Manager(wires, self.folder, clock=now, settings=settings, seed=1, recorder=self.recorder)
        self._wires[manager] = list(wires.values())
        await manager.open()
        return manager

    async def kill(self, manager: Manager) -> None:
        """End a manager as `kill -9` does: nothing that it does from now on has any effect."""
        for wire in self._wires[manager]:
            wire.is_cut = True
        manager._store.close()
        await manager._fleet.end_tasks()

    def run(self, scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        """Run a scenario in virtual time."""

        async def main() -> None:
            await scenario(self)
            for manager in self._wires:
                await manager.close()
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks that nobody ended: {left}"

        run_virtual(main, limit_s=1e5)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world with one host."""
    return World(tmp_path / "store")
