"""A service that is started anew on the same socket: its clients find its new token, all at once and each by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.sandbox.places import served

from rollcage.sandbox.client.address import ServiceAddress
from rollcage.sandbox.client.client import connect
from rollcage.sandbox.drivers.fake import FakeDriver
from rollcage.sandbox.errors import ServiceUnreachable
from rollcage.sandbox.manager.manager import Manager
from rollcage.sandbox.service.server import Listen
from rollcage.sandbox.types import SandboxSpec


def test_many_calls_at_once_find_the_new_service(tmp_path: Path) -> None:
    listen = Listen(unix_socket=tmp_path / "socket")

    async def chunks() -> AsyncIterator[bytes]:
        yield bytes(1024)

    async def main() -> None:
        host = FakeDriver()
        async with Manager({"here": host}, tmp_path) as manager, served(manager, tmp_path, listen):
            client = connect(tmp_path)
            box = await client.create(SandboxSpec(), key="one")
        async with Manager({"here": host}, tmp_path) as manager, served(manager, tmp_path, listen):
            async with client, asyncio.timeout(20.0):
                with pytest.raises(ServiceUnreachable, match="try again"):  # what is streamed cannot be sent twice
                    await box.put_archive(chunks(), "/work")
                stale = client.connection._service = ServiceAddress(f"unix://{listen.unix_socket}", "old", 0)
                calls = [client.create(SandboxSpec(), key="one") for _ in range(20)]
                assert {found.id for found in await asyncio.gather(*calls)} == {box.id}
                assert client.connection._service != stale
                await box.delete()

    asyncio.run(main())
