"""A copy that breaks off in its middle ends with the error that says so, and nothing of it runs on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Generator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from rollcage.sandbox import archive
from rollcage.sandbox.client.client import Client, RemoteSandbox
from rollcage.sandbox.errors import ServiceUnreachable
from rollcage.sandbox.types import SandboxInfo, SandboxSpec, State


def test_packing_can_be_called_off_while_a_slow_disk_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    def slow(source: object, name: str) -> Generator[bytes, None, None]:
        try:
            while True:
                time.sleep(0.3)  # in a thread
                yield b"x"
        finally:
            ended.append(name)

    monkeypatch.setattr(archive, "_members", slow)

    async def main() -> None:
        chunks: Any = archive.pack(b"", "file")
        async with aclosing(chunks):
            first = asyncio.create_task(anext(chunks))
            await asyncio.sleep(0.1)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first

    asyncio.run(main())
    assert ended == ["file"]


def test_an_upload_to_a_service_that_dies_is_told_as_that(tmp_path: Path) -> None:
    async def main() -> None:
        began = asyncio.Event()

        async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await began.wait()
            writer.transport.abort()

        async def slow() -> AsyncIterator[bytes]:
            began.set()
            await asyncio.sleep(0.2)
            while True:
                yield bytes(1 << 20)
                await asyncio.sleep(0.2)

        server = await asyncio.start_unix_server(die, tmp_path / "socket")
        info = SandboxInfo("a1", "", "", SandboxSpec(), "here", State.READY, 1, 0.0)
        async with server, Client(f"unix://{tmp_path}/socket", "token") as client:
            sandbox = RemoteSandbox(client.connection, info)
            chunks: Any = slow()
            with pytest.raises(ServiceUnreachable):
                async with asyncio.timeout(10.0), aclosing(chunks):
                    await sandbox.put_archive(chunks, "/work")

    asyncio.run(main())
