"""One rank of the learner as a process of its own, and the line to it: requests out, replies in, nothing blocks."""

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
from pathlib import Path
from typing import Any, BinaryIO

from rollcage.errors import UserError
from rollcage.trainer.learner.base import LearnerDied
from rollcage.trainer.learner.wire import HEADER, pack

LOG_TAIL_BYTES = 2000
EXIT_TIMEOUT_S = 10.0


class RankProcess:
    """Starts ``python -m rollcage.trainer.learner.worker`` and speaks with it. Used from one event loop.

    The process leads a process group of its own. It ends when its end of the socket closes, so it cannot outlive us,
    even if we are killed.

    Args:
        rank: its number.
        world_size: how many there are.
        memory: descriptor of the shared weights.
        num_threads: CPU threads for its arithmetic.
        log: file that its output goes to; None: an unnamed temporary one.
    """

    def __init__(self, rank: int, world_size: int, memory: int, num_threads: int, log: Path | None) -> None:
        self.rank = rank
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._num_calls = 0
        self._death: str | None = None
        self._listener: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._log: BinaryIO = open(log, "w+b") if log else tempfile.TemporaryFile()  # noqa: SIM115
        self._socket, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rollcage.trainer.learner.worker", str(theirs.fileno()), str(memory)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(theirs.fileno(), memory),
                start_new_session=True,
                env=os.environ
                | {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(world_size),
                    "MASTER_ADDR": "127.0.0.1",
                    "OMP_NUM_THREADS": str(num_threads),
                    "PYTHONUNBUFFERED": "1",
                },
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
        self._listener = asyncio.create_task(self._listen(reader), name=f"learner rank {self.rank}")

    async def call(self, method: str, *arguments: Any) -> Any:
        """Let the rank run ``method`` and return what it returns. The caller sets the deadline.

        Raises:
            LearnerDied: the process is gone, or goes, or the method raised there.
            UserError: the method found bad input.
        """
        if self._death is not None or self._writer is None:
            raise LearnerDied(self._death or f"learner rank {self.rank} is closed")
        self._num_calls += 1
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._replies[self._num_calls] = reply
        try:
            self._writer.write(pack((self._num_calls, method, arguments)))
            await self._writer.drain()
        except ConnectionError:
            pass  # the listener sees the end too, and knows the reason
        outcome, value = await reply
        if outcome == "user_error":
            raise UserError(value)
        if outcome == "error":
            raise LearnerDied(f"learner rank {self.rank}: {method} failed: {value}")
        return value

    def describe_log(self) -> str:
        """Return the last lines of the rank's output, for an error message."""
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
        self._fail(f"learner rank {self.rank} is closed")
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
            self._fail(f"learner rank {self.rank} (process {self._process.pid}) {how}{self.describe_log()}")

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
        """Answer whoever waits, now and later, with `LearnerDied`."""
        self._death = self._death or reason
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(LearnerDied(self._death))
        self._replies.clear()


def _kill_group(process_group: int) -> None:
    try:
        os.killpg(process_group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # gone already (macOS says EPERM of a group of zombies)
