"""The host's side of the agent: many calls at once over one pipe."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any, Protocol

from rollcage.sandbox.errors import BadArchive, DeadlineExceeded, GuestLost, SandboxUnavailable
from rollcage.sandbox.guest.agent.frames import (
    MAGIC,
    MAX_ANSWER_HEADER_BYTES,
    PIECE_BYTES,
    WINDOW_BYTES,
    FrameReader,
    ProtocolError,
    pack_frame,
)
from rollcage.sandbox.guest.base import OnOutput
from rollcage.sandbox.guest.call import Call
from rollcage.sandbox.guest.feeding import Feeding
from rollcage.sandbox.guest.program import PROGRAM
from rollcage.sandbox.types import MIB, ExecRequest, ExecResult, Output, Vitals

GRACE_S = 5.0
"""An outer deadline is so much later than the inner one, which the agent keeps."""
_CLOSE_S = 2.0
_MAX_GARBAGE_BYTES = 1 << 16


class Duplex(Protocol):
    """A pipe to a process inside: its stdin and stdout."""

    async def read(self, num_bytes: int) -> bytes:
        """Return the next bytes, at most so many, or b"" at the end. May raise OSError."""
        ...

    async def write(self, data: bytes) -> None:
        """Write all of it; waits while the other side reads too slowly. May raise OSError."""
        ...

    async def close(self) -> None:
        """Let go of it; idempotent."""
        ...


async def open_agent(duplex: Duplex, *, timeout_s: float = 10.0) -> AgentGuest:
    """Hand the agent to a process that was started with `rollcage.sandbox.guest.program.agent_command`.

    The connection returned owns ``duplex``.

    Raises:
        GuestLost: it ended, or wrote something else; the message holds what it wrote.
        DeadlineExceeded: it did not answer.
    """
    seen = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            with suppress(OSError):  # it ended already: what it wrote says why
                await duplex.write(PROGRAM)
            while (at := seen.find(MAGIC)) < 0:
                data = await duplex.read(1 << 16)
                seen += data
                if not data or len(seen) > _MAX_GARBAGE_BYTES:
                    raise GuestLost(f"The agent did not start; instead came: {_quote(seen)}")
            frames = FrameReader(MAX_ANSWER_HEADER_BYTES)
            found = frames.feed(bytes(seen[at + len(MAGIC) :]))
            while not found:
                data = await duplex.read(1 << 16)
                if not data:
                    raise GuestLost("The agent ended as soon as it had started.")
                found = frames.feed(data)
    except TimeoutError:
        await duplex.close()
        wrote = f" It wrote: {_quote(seen)}" if seen else ""
        raise DeadlineExceeded(f"The agent did not answer within {timeout_s:g} s.{wrote}") from None
    except (OSError, ProtocolError) as error:
        await duplex.close()
        raise GuestLost(f"The agent did not start: {error}. It wrote: {_quote(seen)}") from error
    except BaseException:
        await duplex.close()
        raise
    return AgentGuest(duplex, frames)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _quote(data: bytes | bytearray) -> str:
    return repr(bytes(data[:500]).decode(errors="replace")) if data else "nothing"


class AgentGuest:
    """A `Guest` over a pipe to the agent. Make it with `open_agent`."""

    def __init__(self, duplex: Duplex, frames: FrameReader) -> None:
        self._duplex = duplex
        self._frames = frames
        self._ids = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._outgoing: list[bytes] = []
        self._has_outgoing = asyncio.Event()
        self._lost = ""
        self._closed: asyncio.Task[None] | None = None
        self._tasks = (asyncio.create_task(self._read()), asyncio.create_task(self._write()))

    @property
    def is_lost(self) -> bool:
        """Whether the connection is gone."""
        return bool(self._lost)

    async def exec(
        self, request: ExecRequest, on_output: OnOutput | None = None, stdin: AsyncIterator[bytes] | None = None
    ) -> ExecResult:
        """See `Guest.exec`. The time that ``on_output`` itself takes is the caller's: no deadline holds for it."""
        first = request.stdin[:WINDOW_BYTES]
        header = {
            "op": "exec",
            "command": request.command if isinstance(request.command, str) else list(request.command),
            "env": dict(request.env),
            "cwd": request.cwd,
            "stdin_bytes": len(request.stdin) if stdin is None else sys.maxsize,  # until it is told that it ends
            "streamed": ["stdout", "stderr"] if on_output else [],
        }
        async with AsyncExitStack() as stack:
            call = stack.enter_context(
                self._call("The command", header, request.timeout_s, request.max_output_bytes, payload=first)
            )
            if stdin is None and len(first) < len(request.stdin):
                stdin = _once(request.stdin[len(first) :])
            feeding = await stack.enter_async_context(Feeding(call, stdin, self._send)) if stdin is not None else None
            if feeding is not None:
                feeding.allow(-len(first))
            while True:
                message, payload = await call.next()
                match message["op"]:
                    case "output" if on_output:
                        await on_output(Output(str(message["source"]), payload))
                        call.give_credit(payload)
                    case "credit" if feeding is not None:
                        feeding.allow(message["n"])
                    case "done":
                        return call.result(message, payload)

    async def open_session(self, *, env: dict[str, str], cwd: str) -> AgentSession:
        """See `Guest.open_session`; raises SandboxUnavailable where no shell can be started, as without ``cwd``."""
        with self._call("The start of a shell", {"op": "session", "env": env, "cwd": cwd}, GRACE_S) as call:
            await call.next()
            return AgentSession(self, call.id)

    async def put(self, chunks: AsyncIterator[bytes], folder: str, *, timeout_s: float) -> None:
        """See `Guest.put`."""
        with self._call(f"The upload to {folder!r}", {"op": "put", "folder": folder}, timeout_s) as call:
            room = WINDOW_BYTES
            while (chunk := await call.in_time(anext(chunks, None))) is not None:
                for at in range(0, len(chunk), 4 * PIECE_BYTES):
                    piece = chunk[at : at + 4 * PIECE_BYTES]
                    while room <= 0 or call.has_message:
                        message, payload = await call.next()
                        if message["op"] == "done":  # before the end: it was refused
                            call.check_moved(message, payload)
                            raise BadArchive("The archive went on after its end.")
                        room += message["n"]
                    room -= len(piece)
                    self._send({"op": "data", "id": call.id}, piece)
            self._send({"op": "data", "id": call.id, "end": True})
            while True:
                message, payload = await call.next()
                if message["op"] == "done":
                    call.check_moved(message, payload)
                    return

    async def get(self, path: str, *, timeout_s: float) -> AsyncIterator[bytes]:
        """See `Guest.get`."""
        header = {"op": "get", "path": path, "streamed": ["stdout"]}
        with self._call(f"The download of {path!r}", header, timeout_s) as call:
            while True:
                message, payload = await call.next()
                if message["op"] == "output":
                    yield payload
                    call.give_credit(payload)
                elif message["op"] == "done":
                    call.check_moved(message, payload)
                    return

    async def ping(self, *, timeout_s: float) -> Vitals:
        """See `Guest.ping`; raises SandboxUnavailable where no process can be started inside."""
        with self._call("A probe", {"op": "ping"}, timeout_s, grace_s=0.0) as call:
            message, _ = await call.next()
            return Vitals(
                num_oom_kills=int(message["num_oom_kills"]),
                memory_bytes=int(message["memory_bytes"]),
                num_pids=int(message["num_pids"]),
                cpu_s=float(message["cpu_s"]),
            )

    async def run_in_session(self, session: int, command: str, timeout_s: float, max_output_bytes: int) -> ExecResult:
        """Run a command in the shell of that number; see `AgentSession.run`."""
        header = {"op": "run", "session": session, "command": command}
        with self._call("The command", header, timeout_s, max_output_bytes) as call:
            return call.result(*await call.next())

    async def close_session(self, session: int) -> None:
        """End the shell of that number; idempotent."""
        with self._call("The end of a shell", {"op": "close_session", "session": session}, GRACE_S) as call:
            await call.next()

    async def close(self) -> None:
        """See `Guest.close`. What runs is killed inside; calls in flight raise GuestLost."""
        if self._closed is None:
            self._closed = asyncio.create_task(self._close())
        await asyncio.shield(self._closed)

    async def _close(self) -> None:
        if not self._lost:
            self._send({"op": "shutdown"})
            await asyncio.wait(self._tasks[:1], timeout=_CLOSE_S)
        self._break("The connection was closed.")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._duplex.close()

    def _call(
        self,
        what: str,
        header: dict[str, Any],
        timeout_s: float,
        max_output_bytes: int = PIECE_BYTES,
        *,
        payload: bytes = b"",
        grace_s: float | None = None,
    ) -> Call:
        grace_s = GRACE_S if grace_s is None else grace_s
        deadline = asyncio.get_running_loop().time() + timeout_s + grace_s
        call = Call(next(self._ids), deadline, what, max_output_bytes, self._send, self._calls.__delitem__)
        limits = {"timeout_s": timeout_s, "max_output_bytes": max_output_bytes, "credit": WINDOW_BYTES}
        self._send({**header, **limits, "id": call.id}, payload)
        self._calls[call.id] = call
        return call

    def _send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        if self._lost:
            raise GuestLost(self._lost)
        self._outgoing.append(pack_frame(header, payload))
        self._has_outgoing.set()

    async def _write(self) -> None:
        try:
            while True:
                await self._has_outgoing.wait()
                self._has_outgoing.clear()
                data = b"".join(self._outgoing)
                self._outgoing.clear()
                await self._duplex.write(data)
        except OSError as error:
            self._break(f"The connection to the agent broke: {error}")

    async def _read(self) -> None:
        reason = "The connection to the agent ended."
        try:
            while data := await self._duplex.read(1 << 18):
                for header, payload in self._frames.feed(data):
                    call = self._calls.get(header.get("id", 0))
                    if call is not None:
                        call.deliver(header, payload)
                    else:  # it was given up; and a flood of these must not starve the others
                        await asyncio.sleep(0)
        except (OSError, ProtocolError, TypeError) as error:
            reason = f"The connection to the agent broke: {error}"
        self._break(reason)

    def _break(self, reason: str) -> None:
        self._lost = self._lost or reason
        for call in self._calls.values():
            call.lose(self._lost)


class AgentSession:
    """A `GuestSession`.

    A shell that ended, by `exit`, by `exec` of a program, or because it hung itself at a deadline, is replaced by a new
    one, in the folder and with the variables that the session began with, when the next command comes. What background
    jobs wrote since a command comes with the next one's output. Stdin is empty.

    At a deadline the processes of the command are killed; a shell goes on with the rest of a list such as "a; b" then,
    and is killed too unless it comes to the end within a second.
    """

    def __init__(self, guest: AgentGuest, number: int) -> None:
        self._guest = guest
        self._number = number
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MIB) -> ExecResult:
        """See `GuestSession.run`. Commands take turns; raises SandboxUnavailable once it is closed."""
        async with self._lock:
            if self._is_closed:
                raise SandboxUnavailable("The session was closed.")
            return await self._guest.run_in_session(self._number, command, timeout_s, max_output_bytes)

    async def close(self) -> None:
        """See `GuestSession.close`. A command in flight raises SandboxUnavailable."""
        if not self._is_closed:
            self._is_closed = True
            with suppress(GuestLost):  # then the agent has ended it
                await self._guest.close_session(self._number)
