"""What every placement shares: a pool of hosts, and the handles through which callers use them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from rollcage.envs.placements.base import CALLABLE, EnvDied, EnvHandle, EnvTimeout, PlacementError
from rollcage.errors import UserError


class Host(Protocol):
    """A place for one environment instance, used by one caller at a time.

    Attributes:
        broken: it cannot be used again; the pool ends it instead of keeping it.
    """

    broken: bool

    async def start(self, deadline_s: float) -> None:
        """Build the environment; raises `PlacementError` or `UserError`."""
        ...

    async def ask(self, operation: str, args: dict[str, Any], deadline_s: float) -> Any:
        """Do one operation of `rollcage.envs.placements.instance.Instance`; sets `broken` before it raises."""
        ...

    async def end(self) -> None:
        """Close the environment and free everything; idempotent, never raises."""
        ...


async def answer_by(answer: asyncio.Future[Any], deadline_s: float) -> Any:
    """Await ``answer``, but no longer than ``deadline_s``; raises `EnvTimeout` then."""
    timer = asyncio.get_running_loop().call_later(deadline_s, _expire, answer, deadline_s)
    try:
        return await answer
    finally:
        timer.cancel()


def _expire(answer: asyncio.Future[Any], deadline_s: float) -> None:
    if not answer.done():
        answer.set_exception(EnvTimeout(f"no answer within {deadline_s:g} s."))


class PooledHandle:
    """One caller's use of one host; see `EnvHandle`."""

    def __init__(self, pool: PooledPlacement, host: Host) -> None:
        self._pool, self._host = pool, host
        self._released = False

    async def _ask(self, operation: str, args: dict[str, Any], deadline_s: float) -> Any:
        if self._released or self._host.broken:
            raise EnvDied("this handle is released or broken: acquire another.")
        return await self._host.ask(operation, args, deadline_s)

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None, deadline_s: float
    ) -> tuple[str, dict[str, Any]]:
        """See `EnvHandle.reset`."""
        observation, info = await self._ask("reset", {"seed": seed, "options": options}, deadline_s)
        return observation, info

    async def step(self, action: str, *, deadline_s: float) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """See `EnvHandle.step`."""
        observation, reward, terminated, truncated, info = await self._ask("step", {"action": action}, deadline_s)
        return observation, reward, terminated, truncated, info

    async def call(self, method: str, *args: Any, deadline_s: float) -> Any:
        """See `EnvHandle.call`; what the environment does not offer raises `UserError` and breaks nothing."""
        if method not in CALLABLE:
            raise UserError(f"call: {method!r} is not one of {', '.join(CALLABLE)}.")
        return await self._ask("call", {"method": method, "args": list(args), "kwargs": {}}, deadline_s)

    async def release(self) -> None:
        """See `EnvHandle.release`."""
        if not self._released:
            self._released = True
            await self._pool.give_back(self._host)


class PooledPlacement:
    """Hosts that are built when needed and kept for reuse; see `Placement`.

    Args:
        new_host: makes a host that is not started.
        num_workers: at most so many live at once, later callers wait; None for no limit.
    """

    def __init__(self, new_host: Callable[[], Host], num_workers: int | None = None) -> None:
        if num_workers is not None and num_workers < 1:
            raise UserError(f"num_workers must be at least 1, not {num_workers}.")
        self._new_host = new_host
        self._seats = asyncio.Semaphore(num_workers) if num_workers is not None else None
        self._idle: list[Host] = []
        self._busy: set[Host] = set()
        self._closed = False

    async def acquire(self, *, deadline_s: float) -> EnvHandle:
        """See `Placement.acquire`; raises `UserError` where the environment cannot be built at all."""
        return PooledHandle(self, await self.take(deadline_s))

    async def take(self, deadline_s: float) -> Host:
        """As `acquire`, but without a handle: whoever has the host may ask for anything, and must `give_back` it."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + deadline_s
        if self._seats is not None:
            try:
                async with asyncio.timeout_at(end_s):
                    await self._seats.acquire()
            except TimeoutError:
                raise EnvTimeout(f"no worker became free within {deadline_s:g} s.") from None
        try:
            while True:
                if self._closed:
                    raise PlacementError("the placement is closed.")
                if not self._idle:
                    break
                host = self._idle.pop()
                self._busy.add(host)
                if not host.broken:
                    return host
                await asyncio.shield(self._retire(host))
            host = self._new_host()
            self._busy.add(host)
            try:
                await host.start(max(0.0, end_s - loop.time()))
            except BaseException:
                await asyncio.shield(self._retire(host))
                raise
            return host
        except BaseException:
            if self._seats is not None:
                self._seats.release()
            raise

    async def give_back(self, host: Host) -> None:
        """Take a host back from its handle."""
        try:
            if host in self._busy:  # else `close` has ended it
                if host.broken:
                    await asyncio.shield(self._retire(host))
                else:
                    self._busy.discard(host)
                    self._idle.append(host)
        finally:
            if self._seats is not None:
                self._seats.release()

    async def _retire(self, host: Host) -> None:
        await host.end()
        self._busy.discard(host)

    async def close(self) -> None:
        """See `Placement.close`."""
        self._closed = True
        hosts = [*self._idle, *self._busy]
        self._idle.clear()
        self._busy.clear()
        await asyncio.shield(asyncio.gather(*(host.end() for host in hosts)))
