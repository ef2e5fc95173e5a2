"""A proxy in front of a Docker daemon, unix socket to unix socket, that does to each request what it is told.

Every plain request has a connection of its own (``Connection: close`` is written into it), so that its answer ends
where the daemon closes, and nothing but the head of a request need be understood. Upgraded ("hijacked") connections are
pumped both ways, with half-closes.
"""

from __future__ import annotations

import asyncio
import json
import re
import select
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcage.sandbox.chaos.schedule import Fault

Judge = Callable[[int, str, bool], tuple[Fault | None, float]]
"""(cycle, operation, whether it is a stream) -> what becomes of the request, delay in seconds"""

OWNER = "chaos-"
"""Sandboxes of cycle N have the owner ``chaos-N``."""
_PATH = re.compile(r"(?:/v[\d.]+)?/(\w+)(?:/([^/]+))?(?:/(\w+))?$")
_SANDBOX = re.compile(r"rollcage-([0-9a-f]+)-\d+")
_OWNER = re.compile(OWNER.encode() + rb"(\d+)")
_EXEC_ID = re.compile(rb'"Id":\s*"(\w+)"')
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CONNECTION = re.compile(rb"\r\nconnection:[^\r\n]*", re.IGNORECASE)
_PIECE_BYTES = 1 << 16
_MAX_LOOKS, _NUM_UNSTARTED = 500, 100
_STREAMS = ("events", "containers logs", "containers attach", "exec start")
_EXPECTED = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)
"""What a broken connection, or a client that speaks no HTTP, looks like."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        operation: such as "containers create" or "exec start".
        cycle: whose it is, -1 where that cannot be told.
        name: of what it is about, such as an exec's id.
        head, body: as they came; the body only where its length is told in the head.
        is_hijacked: the connection becomes a raw stream.
    """

    operation: str
    cycle: int
    name: str
    head: bytes
    body: bytes
    is_hijacked: bool

    @property
    def is_stream(self) -> bool:
        """Whether its answer may go on for ever."""
        return self.is_hijacked or self.operation in _STREAMS


class Proxy:
    """The proxy.

    Args:
        upstream: the daemon's socket.
        path: its own socket, which is made.
        judge: asked about each request.
    """

    def __init__(self, upstream: Path, path: Path, judge: Judge) -> None:
        self.path, self._upstream, self._judge = path, upstream, judge
        self._cycle_of: dict[str, int] = {}
        self._starts: defaultdict[int, set[str]] = defaultdict(set)
        self._held: dict[int, asyncio.Event] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def endpoint(self) -> str:
        """What a Docker client is given."""
        return f"unix://{self.path}"

    @property
    def num_connections(self) -> int:
        """How many connections are open."""
        return len(self._serving)

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._connected, self.path, limit=1 << 20)

    async def close(self) -> None:
        """Break all connections and stop listening; idempotent."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self.path.unlink(missing_ok=True)
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @asynccontextmanager
    async def no_starts(self, cycle: int) -> AsyncIterator[None]:
        """For the time of the block no command of a cycle is being started in its containers.

        A start that meets a freeze hangs the daemon for good (see `rollcage.sandbox.drivers.docker_frost`): no fault
        of the manager's where somebody else freezes.
        """
        over = self._held[cycle] = asyncio.Event()
        try:
            for exec_id in self._starts.pop(cycle, ()):
                await self._settled(exec_id)
            yield
        finally:
            del self._held[cycle]
            over.set()

    async def _settled(self, exec_id: str) -> None:
        """Wait until a command runs, has ended, or will not start any more."""
        for attempt in range(_MAX_LOOKS):
            try:
                told = await self._told(exec_id)
            except _EXPECTED:
                return  # the daemon is being restarted
            if told["Pid"] or told["ExitCode"] is not None or (attempt > _NUM_UNSTARTED and not told["Running"]):
                return
            await asyncio.sleep(0.02)

    async def _told(self, exec_id: str) -> dict[str, Any]:
        daemon, to_daemon = await asyncio.open_unix_connection(self._upstream)
        try:
            to_daemon.write(f"GET /exec/{exec_id}/json HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
            head, _, body = (await daemon.read()).partition(b"\r\n\r\n")
        finally:
            await _end(to_daemon)
        found: dict[str, Any] = json.loads(body) if b" 200 " in head.split(b"\r\n")[0] else {"Pid": -1}
        return found

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await self._read(reader)
            while request.operation == "exec start" and (over := self._held.get(request.cycle)) is not None:
                await over.wait()
            if request.operation == "exec start":
                self._starts[request.cycle].add(request.name)
            fault, delay_s = self._judge(request.cycle, request.operation, request.is_stream)
            if fault is Fault.HANG_BEFORE:
                await _gone(reader)
            elif fault in (Fault.CONFLICT, Fault.ERROR_BEFORE):
                writer.write(_refusal(request, fault))
                await writer.drain()
            elif fault is not Fault.DROP_BEFORE:
                await self._forward(request, fault, delay_s, reader, writer)
        except _EXPECTED:
            pass  # one of the two sides has gone: so does the other
        finally:
            await _end(writer)

    async def _read(self, reader: asyncio.StreamReader) -> Request:
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1])) if length else b""
        method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        found = _PATH.match(target.partition("?")[0])
        kind, name, action = found.groups() if found else ("other", None, None)
        last = action or (name if name in ("json", "create", "prune", "load") else None) or method.lower()
        operation = f"{kind} {last}" if name else kind
        sandbox = _SANDBOX.search(target)
        if operation == "containers create" and sandbox and (owner := _OWNER.search(body)):
            self._cycle_of[sandbox[1]] = int(owner[1])
        cycle = self._cycle_of.get(sandbox[1] if sandbox else str(name), -1)
        return Request(operation, cycle, str(name), head, body, b"upgrade:" in head.lower())

    async def _forward(
        self,
        request: Request,
        fault: Fault | None,
        delay_s: float,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        daemon, to_daemon = await asyncio.open_unix_connection(self._upstream, limit=1 << 20)
        try:
            head = request.head
            if not request.is_hijacked:
                head = _CONNECTION.sub(b"", head)[:-2] + b"Connection: close\r\n\r\n"
            to_daemon.write(head + request.body)
            await to_daemon.drain()
            if fault in (Fault.DROP_AFTER, Fault.ERROR_AFTER, Fault.HANG_AFTER):
                await (daemon.readuntil(b"\r\n\r\n") if request.is_stream else daemon.read())
                if fault is Fault.ERROR_AFTER:
                    writer.write(_refusal(request, fault))
                    await writer.drain()
                elif fault is Fault.HANG_AFTER:
                    await _gone(reader)
                return
            if fault is Fault.DELAY:
                await asyncio.sleep(delay_s)
            if request.operation == "containers exec":
                answer = await daemon.read()
                if found := _EXEC_ID.search(answer):
                    self._cycle_of[found[1].decode()] = request.cycle
                writer.write(answer)
                await writer.drain()
                return
            await _pump(reader, writer, daemon, to_daemon, request.is_hijacked, delay_s if fault is Fault.CUT else None)
        finally:
            await _end(to_daemon)


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    daemon: asyncio.StreamReader,
    to_daemon: asyncio.StreamWriter,
    is_hijacked: bool,
    cut_after_s: float | None,
) -> None:
    """Carry bytes both ways until the daemon ends it, the client has gone, or it is to be cut."""
    inward = asyncio.create_task(_copy(reader, to_daemon))
    outward = asyncio.create_task(_copy(daemon, writer))
    try:
        async with asyncio.timeout(cut_after_s):
            await asyncio.wait({inward, outward}, return_when=asyncio.FIRST_COMPLETED)
            if is_hijacked and not outward.done():  # the client has no more input; it may still read
                to_daemon.write_eof()
                while not outward.done() and not _has_hung_up(writer):
                    await asyncio.wait({outward}, timeout=0.2)
    except TimeoutError:
        pass
    finally:
        inward.cancel()
        outward.cancel()
        await asyncio.gather(inward, outward, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_PIECE_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass


async def _gone(reader: asyncio.StreamReader) -> None:
    while await reader.read(_PIECE_BYTES):
        pass


def _has_hung_up(writer: asyncio.StreamWriter) -> bool:
    """Whether the other side has closed both ways: a reader sees only that it sends no more."""
    if writer.is_closing():
        return True
    poll = select.poll()
    poll.register(writer.get_extra_info("socket").fileno(), 0)
    return bool(poll.poll(0))


async def _end(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        pass


def _refusal(request: Request, fault: Fault) -> bytes:
    """Return an answer as the daemon would word it."""
    status, text = b"500 Internal Server Error", "chaos: an internal error of the daemon"
    if fault is Fault.CONFLICT:
        status, text = b"409 Conflict", "conflict: another operation on it is in progress"
        if request.operation == "containers create":
            text = "Conflict. The container name is already in use by another one"
    body = b'{"message":"' + text.encode() + b'"}\n'
    head = b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "
    return head + str(len(body)).encode() + b"\r\n\r\n" + body
