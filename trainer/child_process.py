"""A worker process of ours, and the line to it: it cannot outlive us."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from rollcage.errors import RollcageError
from rollcage.trainer.line import Line

LOG_TAIL_BYTES = 2000
EXIT_TIMEOUT_S = 10.0


class ChildProcess(Line):
    """Starts ``python -m MODULE SOCKET [DESCRIPTOR ...]`` and speaks with it. Used from one event loop.

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
        super().__init__(name, died=died)
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
        self._backstop = weakref.finalize(self, kill_group, self._process.pid)

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._process.pid

    async def open(self) -> None:
        """Begin to listen; to be called once, on the event loop that later calls come from."""
        self.listen(*await asyncio.open_connection(sock=self._socket))

    def describe_log(self) -> str:
        """Return the last lines of the child's output, for an error message."""
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - LOG_TAIL_BYTES))
        tail = self._log.read().decode(errors="replace").strip()
        return f"; the end of its log:\n{tail}" if tail else "; its log is empty"

    async def close(self) -> None:
        """End the process group and let go of everything; idempotent."""
        await super().close()
        self._socket.close()
        await self._end_process()
        self._log.close()

    async def _ended(self) -> str:
        how = await self._end_process()
        return f"{self._name} (process {self._process.pid}) {how}{self.describe_log()}"

    async def _end_process(self) -> str:
        """Kill what is left of the process group, and return how the process ended."""
        if self._backstop.detach() is not None:  # else its id may belong to somebody else by now
            kill_group(self._process.pid)
        try:
            code = await asyncio.to_thread(self._process.wait, EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"cannot be killed (waited {EXIT_TIMEOUT_S:g} s)"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def kill_group(process_group: int) -> None:
    """Kill a process group with SIGKILL, where it is there."""
    try:
        os.killpg(process_group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # gone already (macOS says EPERM of a group of zombies)
