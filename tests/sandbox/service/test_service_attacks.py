"""Clients that mean harm, or break: what they send is refused, what they hold is let go, and nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.sandbox.places import served
from tests.sandbox.service.raw_http import raw, request
from tests.sandbox.service.service_process import delete_all

from rollcage.sandbox.base import Sandbox
from rollcage.sandbox.client.address import ServiceAddress
from rollcage.sandbox.client.client import Client
from rollcage.sandbox.errors import BadRequest, SandboxError
from rollcage.sandbox.opening import open_manager
from rollcage.sandbox.service import connections
from rollcage.sandbox.service.gate import is_this_machine
from rollcage.sandbox.types import SandboxSpec

FLOOD = json.dumps({"command": "yes"}).encode()


@dataclass
class Stage:
    """A service on trusted processes, a client, and a sandbox."""

    service: ServiceAddress
    client: Client
    box: Sandbox

    def head(self, method: str, path: str, *lines: str, host: str = "localhost") -> bytes:
        """Return the head of a request with the token."""
        about = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Authorization: Bearer {self.service.token}", *lines]
        return "\r\n".join([*about, "", ""]).encode()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.service.address.removeprefix("http://").rpartition(":")
        return await asyncio.open_connection(host, int(port), limit=1024)

    async def flood(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Ask for a stream without end."""
        reader, writer = await self.connect()
        about = ["Content-Type: application/json", f"Content-Length: {len(FLOOD)}"]
        writer.write(self.head("POST", f"/v1/sandboxes/{self.box.id}/stream", *about) + FLOOD)
        return reader, writer


@contextlib.asynccontextmanager
async def staged(folder: Path, grace_s: float = 1.0) -> AsyncIterator[Stage]:
    manager = await open_manager(folder, ("process:",))
    async with asyncio.timeout(90.0), served(manager, folder, grace_s=grace_s) as service:
        async with Client(service.address, service.token) as client:
            box = await client.create(SandboxSpec())
            await box.exec("true")
            yield Stage(service, client, box)
            await box.delete()


def on_stage(folder: Path, test: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        async with staged(folder) as stage:
            await test(stage)

    asyncio.run(main())


def held() -> tuple[int, int]:
    """Return how many files and tasks this process has."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())


async def settles(before: tuple[int, int], slack: int = 4) -> None:
    """Wait until files and tasks are as few as before, but for what the manager does by itself now and then."""
    async with asyncio.timeout(15.0):
        while any(now > then + slack for now, then in zip(held(), before, strict=True)):
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("127.0.0.1:80", 200), ("LOCALHOST.:1", 200), ("evil.example", 421), ("10.0.0.1:80", 421)],
)
def test_a_name_that_is_not_this_machines_is_refused(host: str, status: int, tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        for path in ("/", "/v1/sandboxes"):
            answer = await raw(stage.service, stage.head("GET", path, "Connection: close", host=host))
            assert answer.startswith(f"HTTP/1.1 {status} ".encode())

    on_stage(tmp_path, test)
    assert not is_this_machine("127.0.0.1.evil.example")
    assert not is_this_machine("[::ffff:10.0.0.1]:80")


def test_no_page_of_elsewhere_may_read_an_answer(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        for method in ("GET", "OPTIONS"):
            sent = stage.head(method, "/v1/sandboxes", "Origin: http://evil.example", "Connection: close")
            assert b"access-control" not in (await raw(stage.service, sent)).lower()

    on_stage(tmp_path, test)


def test_a_request_whose_head_does_not_come_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 1.0)

    async def test(stage: Stage) -> None:
        before = held()
        slow = [await stage.connect() for _ in range(200)]
        for number, (_, writer) in enumerate(slow):
            writer.write([b"", b"GET / HTTP/1.1\r\nX: "][number % 2])
        begin_s = time.monotonic()
        assert await stage.client.list_sandboxes(), "others are served meanwhile"
        for reader, writer in slow:
            while await reader.read(1 << 16):
                pass
            writer.close()
        assert time.monotonic() - begin_s < 8.0
        long = await stage.box.exec("sleep 2; echo done")
        assert long.stdout == b"done\n", "one that is answered may take its time"
        await settles(before)

    on_stage(tmp_path, test)


def test_clients_that_vanish_leave_nothing(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        async def reader_that_leaves() -> None:
            reader, writer = await stage.flood()
            await reader.read(1000)
            writer.transport.abort()

        async def writer_that_leaves(number: int) -> None:
            _, writer = await stage.connect()
            path = f"/v1/sandboxes/{stage.box.id}/files?folder=up{number}"
            writer.write(stage.head("POST", path, "Content-Length: 100000") + bytes(2000))
            await asyncio.sleep(0.1)
            writer.transport.abort()

        async def caller_that_leaves() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await stage.box.exec("sleep 600")

        before = held()
        for _ in range(2):
            await asyncio.gather(*(reader_that_leaves() for _ in range(20)))
            await asyncio.gather(*(writer_that_leaves(number) for number in range(20)))
            await asyncio.gather(*(caller_that_leaves() for _ in range(20)))
            await settles(before)
        home = (await stage.box.exec("pwd")).stdout_text.strip()
        async with asyncio.timeout(10.0):
            while (await stage.box.exec(["pgrep", "-f", "^yes|^sleep 600$"], cwd=home)).stdout.count(b"\n") > 100:
                await asyncio.sleep(0.1)

    on_stage(tmp_path, test)


def test_two_hundred_at_once(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        before = held()
        async with Client(stage.service.address, stage.service.token) as client:
            box = await client.attach(stage.box.id)
            results = await asyncio.gather(*(box.exec(f"echo {number}") for number in range(200)))
            assert [int(result.stdout) for result in results] == list(range(200))
        await settles(before)

    on_stage(tmp_path, test)


def test_streams_that_nobody_reads_do_not_hold_up_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main() -> None:
        await asyncio.sleep(0)
        before = held()
        manager = await open_manager(tmp_path, ("process:",))
        async with served(manager, tmp_path, grace_s=0.5) as service, Client(service.address, service.token) as client:
            stage = Stage(service, client, await client.create(SandboxSpec()))
            ends = [await stage.flood() for _ in range(10)]
            await asyncio.sleep(1.0)
            assert (await stage.box.exec("echo alive")).stdout == b"alive\n"
            begin_s = time.monotonic()
        assert time.monotonic() - begin_s < 6.0
        for _, writer in ends:
            writer.transport.abort()
        await settles(before)

    asyncio.run(main())
    delete_all(tmp_path)
    assert "response" not in caplog.text + capfd.readouterr().err


@pytest.mark.parametrize("path", ["x%00y", "a" * 5000])
def test_paths_that_are_none_are_refused(path: str, tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        for what in ("content", "files"):
            status, told = await request(stage.service, "GET", f"/v1/sandboxes/{stage.box.id}/{what}?path={path}")
            assert (status, told["error"]["type"]) == (422, "BadRequest")

    on_stage(tmp_path, test)


def test_a_key_has_a_reasonable_length_and_can_be_shown(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        for key in ("k" * 1_000_000, "nul\0", "line\n"):
            with pytest.raises(BadRequest, match="key"):
                await stage.client.create(SandboxSpec(), key=key)
        with pytest.raises(SandboxError):
            await stage.box.fork(key="k" * 1000)

    on_stage(tmp_path, test)


def test_nobody_else_can_read_the_token_or_enter_the_socket(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "state"
    before = os.umask(0)
    try:

        async def main() -> None:
            async with staged(folder):
                assert stat.S_IMODE(folder.stat().st_mode) == 0o700
                assert stat.S_IMODE((folder / "service.json").stat().st_mode) == 0o600

        asyncio.run(main())
    finally:
        os.umask(before)
