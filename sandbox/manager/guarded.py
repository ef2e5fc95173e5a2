"""A driver whose every call goes through its host's circuit breaker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeVar

from rollcage.sandbox.drivers.base import Container, Driver, HostEvent, HostStatus, Observed
from rollcage.sandbox.guest.base import Guest
from rollcage.sandbox.manager.breaker import Breaker
from rollcage.sandbox.types import SandboxSpec

T = TypeVar("T")

HEAVY = 10
"""Calls that move much data, start or end something may take so many times as long as the others."""


def guarded(driver: Driver, breaker: Breaker, *, call_timeout_s: float = 60.0, slow_s: float = 5.0) -> Driver:
    """Return a driver whose every call goes through ``breaker``.

    Calls that move much data, or start or end something, get ten times both limits. `Driver.events` is refused while
    the breaker is not closed; else only its failures count. `Driver.close` always passes.

    Args:
        driver: of the host.
        breaker: of the same host.
        call_timeout_s: longest wait for an answer; the driver's own deadlines are shorter.
        slow_s: an answer that takes longer counts as bad; more by a quarter for each call of the other kind under way.
    """
    return _Guarded(driver, breaker, call_timeout_s, slow_s)


class _Guarded:
    """See `guarded`; the calls are the driver's."""

    def __init__(self, driver: Driver, breaker: Breaker, call_timeout_s: float, slow_s: float) -> None:
        self.endpoint = driver.endpoint
        self._driver, self._breaker = driver, breaker
        self._timeout_s, self._slow_s = call_timeout_s, slow_s

    async def _light(self, operation: Callable[[], Awaitable[T]]) -> T:
        return await self._breaker.call(operation, timeout_s=self._timeout_s, slow_s=self._slow_s)

    async def _heavy(self, operation: Callable[[], Awaitable[T]]) -> T:
        limits = {"timeout_s": HEAVY * self._timeout_s, "slow_s": HEAVY * self._slow_s}
        return await self._breaker.call(operation, **limits, is_heavy=True)

    async def create(self, container: Container) -> None:
        await self._heavy(lambda: self._driver.create(container))

    async def connect(self, name: str, spec: SandboxSpec) -> Guest:
        return await self._heavy(lambda: self._driver.connect(name, spec))

    async def inspect(self, name: str) -> Observed | None:
        return await self._light(lambda: self._driver.inspect(name))

    async def list_containers(self, manager: str) -> list[Observed]:
        return await self._light(lambda: self._driver.list_containers(manager))

    def events(self, manager: str) -> AsyncIterator[HostEvent]:
        return self._breaker.stream(lambda: self._driver.events(manager))

    async def logs(self, name: str, *, num_lines: int) -> str:
        return await self._light(lambda: self._driver.logs(name, num_lines=num_lines))

    async def kill(self, name: str) -> None:
        await self._heavy(lambda: self._driver.kill(name))

    async def remove(self, name: str) -> None:
        await self._heavy(lambda: self._driver.remove(name))

    async def pause(self, name: str) -> None:
        await self._light(lambda: self._driver.pause(name))

    async def unpause(self, name: str) -> None:
        await self._light(lambda: self._driver.unpause(name))

    async def commit(self, name: str, image: str, labels: Mapping[str, str]) -> None:
        await self._heavy(lambda: self._driver.commit(name, image, labels))

    async def list_images(self, manager: str) -> list[str]:
        return await self._light(lambda: self._driver.list_images(manager))

    async def remove_image(self, image: str) -> None:
        await self._heavy(lambda: self._driver.remove_image(image))

    async def written_bytes(self, manager: str) -> Mapping[str, int]:
        return await self._heavy(lambda: self._driver.written_bytes(manager))

    async def status(self) -> HostStatus:
        return await self._light(lambda: self._driver.status())

    async def close(self) -> None:
        await self._driver.close()
