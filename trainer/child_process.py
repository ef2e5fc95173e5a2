"""A worker process of ours and the line to it: calls out, replies in, nothing blocks, and it cannot outlive us."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rollcage.errors import RollcageError
from rollcage.trainer.wire import HEADER, pack

LOG_TAIL_BYTES = 2000
EXIT_TIMEOUT_S = 10.0


class ChildProcess:
    """Starts ``python -m MODULE SOCKET [DESCRIPTOR ...]`` and speaks with it. Used from one event loop.

    The child answers calls ``(number, method, arguments)`` with ``(number, outcome, value)``: outcome "ok"; "refused"
    (value is an exception of ours, raised here) where the child goes on; "error" (value is text) where it ends.

    The process leads a process group of its own. It ends when its end of the socket closes, so it cannot outlive us,
    even if we are killed.

    Args:
        name: for messages ("learner rank 0").
        module: what it runs.
        died: raised in every call when the process is gone.
        descriptors: handed on to it.
        environment: beside our own.
        log: file that its output goes to; None: an unnamed temporary one.
    """

    def __init__(
        self,
        name: str,
        module: str,
        *,
        died: type[RollcageError],
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        self._name, self._died = name, died
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._num_calls = 0
        self._death: str | None = None
        self._listener: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._log: BinaryIO = open(log, "w+b") if log else tempfile.TemporaryFile()  # noqa: SIM115
        self._socket, theirs = socket.socketpair()
        handed_on = (theirs.fileno(), *descriptors)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, handed_on)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=handed_on,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            )
        finally:
            theirs.close()
        self._backstop = weakref.finalize(self, _kill_group, self._process.pid)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._process.pid

    async def open(self) -> None:
        """Begin to listen; to be called once, on the event loop that later calls come from."""
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        self._listener = asyncio.create_task(self._listen(reader), name=self._name)

    async def call(self, method: str, *arguments: Any) -> Any:
        """Let the child run ``method`` and return what it returns. The caller sets the deadline.

        Raises:
            RollcageError: ``died`` where the process is gone, or goes, or the method raised there; else what the child
                refused the call with.
        """
        if self._death is not None or self._writer is None:
            raise self._died(self._death or f"{self._name} is closed")
        self._num_calls += 1
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies[self._num_calls] = reply
        try:
            self._writer.write(pack((self._num_calls, method, arguments)))
            await self._writer.drain()
        except ConnectionError:
            pass  # the listener sees the end too, and knows the reason
        outcome, value = await reply
        if outcome == "refused":
            raise value
        if outcome == "error":
            raise self._died(f"{self._name}: {method} failed: {value}")
        return value

    def describe_log(self) -> str:
        """Return the last lines of the child's output, for an error message."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_TAIL_BYTES))
        tail = self._log.read().decode(errors="replace").strip()
        return f"; the end of its log:\n{tail}" if tail else "; its log is empty"

    async def close(self) -> None:
        """End the process group and let go of everything; idempotent."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
            await asyncio.sleep(0)  # lets the transport close its socket
        self._socket.close()
        self._fail(f"{self._name} is closed")
        await self._end_process()
        self._log.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
                number, outcome, value = pickle.loads(await reader.readexactly(size))
                reply = self._replies.pop(number, None)
                if reply is not None and not reply.done():  # a cancelled call does not wait for its reply
                    reply.set_result((outcome, value))
        except (asyncio.IncompleteReadError, ConnectionError):
            how = await self._end_process()
            self._fail(f"{self._name} (process {self._process.pid}) {how}{self.describe_log()}")

    async def _end_process(self) -> str:
        """Kill what is left of the process group, and return how the process ended."""
        if self._backstop.detach() is not None:  # else its id may belong to somebody else by now
            _kill_group(self._process.pid)
        try:
            code = await asyncio.to_thread(self._process.wait, EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"cannot be killed (waited {EXIT_TIMEOUT_S:g} s)"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _fail(self, reason: str) -> None:
        """Answer whoever waits, now and later, with ``died``."""
        self._death = self._death or reason
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(self._died(self._death))
        self._replies.clear()


def _kill_group(process_group: int) -> None:
    try:
        os.killpg(process_group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # gone already (macOS says EPERM of a group of zombies)
