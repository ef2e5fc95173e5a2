"""The proxy of the fault harness by itself: each fault does what its name says, and streams pass whole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rollcage.sandbox.chaos.proxy import Proxy
from rollcage.sandbox.chaos.schedule import Fault, Schedule, plan

PLAIN = b"POST /v1.41/containers/rollcage-abc-1/start HTTP/1.1\r\nHost: d\r\nConnection: keep-alive\r\n\r\n"
UPGRADE = (
    b"POST /exec/e1/start HTTP/1.1\r\nHost: d\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 2\r\n\r\n{}"
)
CREATE = (
    b"POST /containers/create?name=rollcage-abc-1 HTTP/1.1\r\nHost: d\r\nContent-Length: 40\r\n\r\n"
    + b'{"Labels": {"r": "owner\\":\\"chaos-17"}}'.ljust(40)
)


class Daemon:
    """Answers like a daemon, and remembers what it was asked for."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.inputs: list[bytes] = []
        self.num_open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_open += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            if b"upgrade" in head.lower():
                await reader.readexactly(2)
                writer.write(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\n\r\n")
                while data := await reader.read(1 << 16):
                    writer.write(data)
                    await writer.drain()
                writer.write(b"|end of input")
            elif b"/exec HTTP" in head:
                writer.write(b'HTTP/1.1 201 Created\r\n\r\n{"Id":"e1"}')
            else:
                writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
            self.num_open -= 1


Ask = Callable[[bytes], Awaitable[bytes]]


@contextlib.asynccontextmanager
async def proxied(folder: Path, *faults: tuple[Fault | None, float]) -> AsyncIterator[tuple[Proxy, Daemon, list[str]]]:
    """A proxy before a daemon, with what happens to each request in turn."""
    daemon, asked, coming = Daemon(), list[str](), list(faults)

    def judge(cycle: int, operation: str, is_stream: bool) -> tuple[Fault | None, float]:
        asked.append(f"{cycle} {operation}{' (stream)' if is_stream else ''}")
        return coming.pop(0) if coming else (None, 0.0)

    server = await asyncio.start_unix_server(daemon.serve, folder / "daemon")
    proxy = Proxy(folder / "daemon", folder / "proxy", judge)
    await proxy.open()
    try:
        async with server:
            yield proxy, daemon, asked
            async with asyncio.timeout(5.0):
                await proxy.close()
                while daemon.num_open:
                    await asyncio.sleep(0.01)
        assert proxy.num_connections == 0
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks that nobody ended: {left}"
    finally:
        await proxy.close()


async def ask(proxy: Proxy, request: bytes, limit_s: float = 2.0) -> bytes:
    """Return all that comes in answer until the connection ends; raises TimeoutError where it does not."""
    reader, writer = await asyncio.open_unix_connection(proxy.path)
    try:
        writer.write(request)
        async with asyncio.timeout(limit_s):
            return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    ("fault", "answer", "is_done"),
    [
        (None, b"HTTP/1.1 204", True),
        (Fault.DELAY, b"HTTP/1.1 204", True),
        (Fault.DROP_BEFORE, b"", False),
        (Fault.DROP_AFTER, b"", True),
        (Fault.CONFLICT, b"HTTP/1.1 409", False),
        (Fault.ERROR_BEFORE, b"HTTP/1.1 500", False),
        (Fault.ERROR_AFTER, b"HTTP/1.1 500", True),
        (Fault.HANG_BEFORE, None, False),
        (Fault.HANG_AFTER, None, True),
    ],
)
def test_a_fault_does_what_its_name_says(
    fault: Fault | None, answer: bytes | None, is_done: bool, tmp_path: Path
) -> None:
    async def main() -> None:
        async with proxied(tmp_path, (fault, 0.3)) as (proxy, daemon, asked):
            begin_s = asyncio.get_running_loop().time()
            try:
                got = await ask(proxy, PLAIN, limit_s=1.0)
            except TimeoutError:
                got = None
            took_s = asyncio.get_running_loop().time() - begin_s
            assert (got is None) == (answer is None)
            assert got is None or answer is None or (got.startswith(answer) and (answer == b"") == (got == b""))
            assert bool(daemon.heads) == is_done
            assert (0.3 <= took_s < 1.0) if fault is Fault.DELAY else (took_s < 0.3 or got is None)
            assert asked == ["-1 containers start"]
            assert (await ask(proxy, PLAIN)).startswith(b"HTTP/1.1 204"), "the next one passes"

    asyncio.run(main())


def test_a_plain_request_ends_its_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with proxied(tmp_path) as (proxy, daemon, _):
            await ask(proxy, PLAIN)
            (head,) = daemon.heads
            assert b"Connection: close\r\n\r\n" in head
            assert b"keep-alive" not in head

    asyncio.run(main())


def test_a_hijacked_stream_passes_whole_both_ways_with_its_half_close(tmp_path: Path) -> None:
    async def main() -> None:
        async with proxied(tmp_path) as (proxy, _, asked):
            reader, writer = await asyncio.open_unix_connection(proxy.path)
            writer.write(UPGRADE)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
            sent = bytes(range(256)) * 40_000  # 10 MB, more than all buffers hold

            async def send() -> None:
                writer.write(sent)
                await writer.drain()
                writer.write_eof()

            async with asyncio.timeout(20.0):
                _, got = await asyncio.gather(send(), reader.read())
            assert got == sent + b"|end of input"
            assert asked == ["-1 exec start (stream)"]
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())


def test_a_client_that_dies_takes_its_stream_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with proxied(tmp_path) as (proxy, daemon, _):
            reader, writer = await asyncio.open_unix_connection(proxy.path)
            writer.write(UPGRADE)
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.abort()
            async with asyncio.timeout(2.0):
                while daemon.num_open or proxy.num_connections:
                    await asyncio.sleep(0.02)

    asyncio.run(main())


def test_a_stream_can_be_cut_in_its_middle(tmp_path: Path) -> None:
    async def main() -> None:
        async with proxied(tmp_path, (Fault.CUT, 0.3)) as (proxy, _, _):
            reader, writer = await asyncio.open_unix_connection(proxy.path)
            writer.write(UPGRADE)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            async with asyncio.timeout(2.0):
                assert await reader.read() == b"", "the daemon did not end it"
            writer.close()
            await writer.wait_closed()

    asyncio.run(main())


def test_requests_are_told_apart_by_the_cycle_that_they_are_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with proxied(tmp_path) as (proxy, _, asked):
            await ask(proxy, CREATE)
            await ask(proxy, PLAIN)
            await ask(proxy, b"POST /containers/rollcage-abc-2/exec HTTP/1.1\r\nHost: d\r\n\r\n")
            await ask(proxy, b"GET /v1.41/exec/e1/json HTTP/1.1\r\nHost: d\r\n\r\n")
            await ask(proxy, b"GET /v1.41/containers/json?all=1 HTTP/1.1\r\nHost: d\r\n\r\n")
            await ask(proxy, b"DELETE /containers/rollcage-abc-1?v=1 HTTP/1.1\r\nHost: d\r\n\r\n")
            await ask(proxy, b"POST /commit?container=rollcage-abc-1 HTTP/1.1\r\nHost: d\r\n\r\n")
            assert asked == [
                "17 containers create",
                "17 containers start",
                "17 containers exec",
                "17 exec json",
                "-1 containers json",
                "17 containers delete",
                "17 commit",
            ]

    asyncio.run(main())


def test_what_is_no_http_ends_its_own_connection_only(tmp_path: Path) -> None:
    async def main() -> None:
        async with proxied(tmp_path) as (proxy, _, asked):
            for garbage in (
                b"\r\n\r\n",
                b"GET\r\n\r\n",
                b"x" * (2 << 20),
                b"GET / HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
            ):
                reader, writer = await asyncio.open_unix_connection(proxy.path)
                with contextlib.suppress(OSError):
                    writer.write(garbage)
                    writer.write_eof()
                    async with asyncio.timeout(2.0):
                        assert await reader.read() == b""
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            assert asked == []
            assert (await ask(proxy, PLAIN)).startswith(b"HTTP/1.1 204")

    asyncio.run(main())


def test_a_seed_says_what_goes_wrong_in_a_cycle_whatever_goes_on_beside_it() -> None:
    alone, beside = Schedule(7, 0.5), Schedule(7, 0.5)
    operations = ("containers create", "exec start", "events") * 20
    first = [alone.fault(3, operation, operation != "containers create") for operation in operations]
    second = []
    for operation in operations:
        beside.fault(4, operation, False)
        second.append(beside.fault(3, operation, operation != "containers create"))
    assert first == second
    assert {fault for fault, _ in first} > {None, Fault.CUT, Fault.DELAY}
    other = Schedule(8, 0.5)
    assert first != [other.fault(3, operation, operation != "containers create") for operation in operations]
    assert plan(7, 3) == plan(7, 3) != plan(8, 3)
    alone.is_calm = True
    assert alone.fault(3, "events", True) == (None, 0.0)
