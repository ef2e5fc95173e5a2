"""A proxy in front of a Docker daemon that holds its answers back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Proxy:
    """Its endpoint, and for how long an answer is held back (the request itself reaches the daemon at once)."""

    endpoint: str
    delay_s: float = 0.0


@asynccontextmanager
async def open_proxy(endpoint: str, folder: Path) -> AsyncIterator[Proxy]:
    """Listen on a unix socket in ``folder`` for a daemon on another."""
    proxy = Proxy(f"unix://{folder}/proxy.sock")
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool) -> None:
        try:
            while data := await reader.read(1 << 16):
                if is_answer:
                    await asyncio.sleep(proxy.delay_s)
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:
            pass

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        far_reader, far_writer = await asyncio.open_unix_connection(endpoint.removeprefix("unix://"))
        try:
            await asyncio.gather(pump(reader, far_writer, is_answer=False), pump(far_reader, writer, is_answer=True))
        except asyncio.CancelledError:
            pass
        finally:
            far_writer.close()
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_unix_server(serve, f"{folder}/proxy.sock")
    try:
        yield proxy
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)
