"""Where the conformance suite runs: a manager in this process, or a client of a service, over a port or a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from rollcage.sandbox.base import Sandboxes
from rollcage.sandbox.client.address import ServiceAddress
from rollcage.sandbox.client.client import Client
from rollcage.sandbox.opening import open_manager
from rollcage.sandbox.service.server import Listen, serve

PLACES = ("manager", "client", "client on a socket", "client of docker")


@contextlib.asynccontextmanager
async def served(
    sandboxes: Sandboxes, folder: Path, listen: Listen | None = None, *, grace_s: float = 1.0
) -> AsyncIterator[ServiceAddress]:
    """Serve sandboxes in this process."""
    found: asyncio.Future[ServiceAddress] = asyncio.get_running_loop().create_future()

    async def give() -> Sandboxes:
        return sandboxes

    serving = asyncio.create_task(serve(give, folder, listen or Listen(), on_ready=found.set_result, grace_s=grace_s))
    await asyncio.wait({serving, found}, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        await serving
    try:
        yield found.result()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@contextlib.asynccontextmanager
async def opened(place: str, folder: Path) -> AsyncIterator[Sandboxes]:
    """Open sandboxes in a place, with a new manager; they are deleted at the end."""
    endpoints = () if place == "client of docker" else ("process:",)
    manager = await open_manager(folder, endpoints)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(manager.close)
        stack.push_async_callback(_delete_all, manager)
        if place == "manager":
            yield manager
            return
        listen = Listen(unix_socket=folder / "socket") if place == "client on a socket" else Listen()
        service = await stack.enter_async_context(served(_Kept(manager), folder, listen))
        yield await stack.enter_async_context(Client(service.address, service.token))


async def _delete_all(manager: Sandboxes) -> None:
    for info in await manager.list_sandboxes():
        await (await manager.attach(info.id)).delete()


class _Kept:
    """A manager that a service may not close: there is something to be deleted first."""

    def __init__(self, manager: Sandboxes) -> None:
        self._manager = manager

    def __getattr__(self, name: str) -> object:
        return getattr(self._manager, name)

    async def close(self) -> None:
        pass
