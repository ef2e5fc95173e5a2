"""A port in front of a Docker daemon, as a socket proxy on a node of a cluster has it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def port_of(endpoint: str, port: socket.socket | None = None) -> AsyncIterator[str]:
    """A TCP port in front of a daemon's unix socket, as a socket proxy has it.

    Args:
        endpoint: of the daemon.
        port: a socket that is bound to it already; None: any free one.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if writer.get_extra_info("peername")[0] != writer.get_extra_info("sockname")[0]:
                raise ConnectionError("of another machine, which must not be root on this one")
            there, to_there = await asyncio.open_unix_connection(endpoint.removeprefix("unix://"))
        except OSError:  # the daemon is dead
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await asyncio.gather(copy(reader, to_there), copy(there, writer))
        finally:
            writer.close()
            to_there.close()
            tasks.discard(task)

    server = await (
        asyncio.start_server(serve, sock=port.dup()) if port else asyncio.start_server(serve, "127.0.0.1", 0)
    )
    try:
        yield str(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in [*tasks]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
