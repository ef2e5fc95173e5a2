"""A service that is started anew under its clients: what may be repeated waits, everything else fails at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
from tests.sandbox.places import served

from rollcage.sandbox.client import connection
from rollcage.sandbox.client.address import ServiceAddress
from rollcage.sandbox.client.client import Client, connect
from rollcage.sandbox.client.connection import Connection
from rollcage.sandbox.drivers.fake import FakeDriver
from rollcage.sandbox.errors import ServiceUnreachable
from rollcage.sandbox.manager.manager import Manager
from rollcage.sandbox.service.server import Listen
from rollcage.sandbox.types import SandboxSpec, State

SPEC = SandboxSpec()


@contextlib.asynccontextmanager
async def aborting(path: Path) -> AsyncIterator[list[float]]:
    """Take each request and break its connection off; yields when they came."""
    came: list[float] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            came.append(time.monotonic())
        writer.transport.abort()

    async with await asyncio.start_unix_server(take, path):
        yield came


@pytest.mark.parametrize("where", ["a port", "a socket"])
def test_what_may_be_repeated_outlasts_a_restart_and_nothing_else_waits(where: str, tmp_path: Path) -> None:
    host = FakeDriver()
    listen = Listen(unix_socket=tmp_path / "socket") if where == "a socket" else Listen()

    async def main() -> None:
        async with Manager({"here": host}, tmp_path) as manager, served(manager, tmp_path, listen):
            client = connect(tmp_path)
            box = await client.create(SPEC, key="one")
        async with client:
            calls = [asyncio.create_task(client.create(SPEC, key=key)) for key in ("one", "one", "two")]
            look = asyncio.create_task(client.list_sandboxes())
            begin_s = time.monotonic()
            for call in (client.create(SPEC), box.exec("true"), box.put(b"x", "/work/x"), client.reap()):
                with pytest.raises(ServiceUnreachable) as told:
                    await call
                assert not told.value.may_have_happened
            assert time.monotonic() - begin_s < 1.0
            await asyncio.sleep(2.0)
            async with Manager({"here": host}, tmp_path) as manager, served(manager, tmp_path, listen):
                same, too, other = await asyncio.gather(*calls)
                assert same.id == too.id == box.id != other.id
                assert len(await look) >= 1
                assert (await box.exec("true")).ok, "the client has found the new service"
                await box.delete()
                await other.delete()

    asyncio.run(asyncio.wait_for(main(), 30.0))


def test_a_keyed_create_in_flight_when_the_service_ends_is_done_by_the_next(tmp_path: Path) -> None:
    slow = FakeDriver(create_s=5.0)

    async def main() -> None:
        async with Manager({"here": slow}, tmp_path) as manager, served(manager, tmp_path, grace_s=0.1):
            client = connect(tmp_path)
            keyed = asyncio.create_task(client.create(SPEC, key="one"))
            other = asyncio.create_task(client.create(SPEC))
            await asyncio.sleep(0.3)
        with pytest.raises(ServiceUnreachable) as told:
            await other
        assert told.value.may_have_happened
        slow.create_s = 0.0
        async with client, Manager({"here": slow}, tmp_path) as manager, served(manager, tmp_path):
            box = await keyed
            infos = await client.list_sandboxes()
            assert [info.key for info in infos if info.state == State.READY] == ["one"]
            await box.delete()

    asyncio.run(asyncio.wait_for(main(), 30.0))


def test_a_call_that_was_sent_may_have_happened(tmp_path: Path) -> None:
    async def main() -> None:
        async with aborting(tmp_path / "socket") as came, Client(f"unix://{tmp_path}/socket", "token") as client:
            with pytest.raises(ServiceUnreachable, match="nobody knows whether") as told:
                await client.create(SPEC)
            assert told.value.may_have_happened
            assert len(came) == 1

    asyncio.run(main())


def test_the_pauses_between_tries_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRY_S", 2.5)

    async def main() -> None:
        async with aborting(tmp_path / "socket") as came, Client(f"unix://{tmp_path}/socket", "token") as client:
            with pytest.raises(ServiceUnreachable):
                await client.create(SPEC, key="one")
            pauses = [later - earlier for earlier, later in pairwise(came)]
            assert 5 <= len(came) <= 8
            assert came[-1] - came[0] == pytest.approx(2.5, abs=0.6)
            assert pauses[0] < 0.3 < pauses[-2]

    asyncio.run(main())


def test_the_callers_deadline_ends_the_tries(tmp_path: Path) -> None:
    async def main() -> None:
        link = Connection(ServiceAddress(f"unix://{tmp_path}/none", "token", 0))
        begin_s = time.monotonic()
        with pytest.raises(ServiceUnreachable):
            await link.ask("GET", "hosts", limit_s=0.5, repeat=True)
        assert 0.4 < time.monotonic() - begin_s < 1.5
        await link.close()

    asyncio.run(main())
