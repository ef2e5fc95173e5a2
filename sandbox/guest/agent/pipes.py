"""A command's output and input: pipes with caps, credit and back-pressure."""

from __future__ import annotations

import fcntl
import os
import selectors
import struct
import termios
import time

from rollcage.sandbox.guest.agent.frames import PIECE_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from rollcage.sandbox.guest.agent.job import Task
    from rollcage.sandbox.guest.agent.loop import Loop


class Output:
    """The reading end of a command's stdout or stderr.

    Its bytes go to ``task``; without one they are thrown away, at no great pace, so that no background child blocks.
    """

    def __init__(self, agent: Loop, fd: int, source: str, task: Task | None) -> None:
        os.set_blocking(fd, False)
        self.agent, self.fd, self.source, self.task = agent, fd, source, task
        self._registered = False
        self.resume()

    def resume(self) -> None:
        """Read on, if it was paused."""
        if not self._registered and self.fd >= 0:
            self.agent.selector.register(self.fd, selectors.EVENT_READ, self.on_ready)
            self._registered = True

    def pause(self) -> None:
        """Leave it unread: the writer blocks once the pipe is full."""
        if self._registered:
            self.agent.selector.unregister(self.fd)
            self._registered = False

    def on_ready(self) -> None:
        """Take one piece."""
        if not self._registered:
            return
        task, most = self.task, PIECE_BYTES
        if task is not None and self.source in task.streamed:
            most = min(most, task.credit)
            if most <= 0:
                self.pause()
                return
        try:
            data = os.read(self.fd, most)
        except BlockingIOError:  # drained in this very round
            return
        if not data:
            self.close()
        elif task is not None:
            task.take(self.source, data)
        elif len(data) == most:
            self.pause()
            self.agent.at(self, time.monotonic() + 0.02, self.resume)

    def drain(self) -> None:
        """Take what is in the pipe now, without waiting for its end, which background children may hold open."""
        if self.fd < 0:
            return
        count = bytearray(4)
        fcntl.ioctl(self.fd, termios.FIONREAD, count)
        left = struct.unpack("i", count)[0]
        while left > 0:
            data = os.read(self.fd, min(left, PIECE_BYTES))
            if not data:
                return
            left -= len(data)
            if self.task is not None:
                self.task.take(self.source, data)

    def close(self) -> None:
        """Close it; idempotent."""
        if self.fd >= 0:
            self.pause()
            self.agent.timers.pop(self, None)
            os.close(self.fd)
            self.fd = -1


class Input:
    """The writing end of a command's stdin; ``on_taken`` hears how many bytes are gone."""

    def __init__(self, agent: Loop, fd: int, on_taken: Callable[[int], None] | None = None) -> None:
        os.set_blocking(fd, False)
        self.agent, self.fd, self.on_taken = agent, fd, on_taken
        self._waiting = bytearray()
        self._registered = self._ending = False

    def write(self, data: bytes, *, end: bool = False) -> None:
        """Write ``data`` as the command reads it, then close where this is the end."""
        self._ending = self._ending or end
        if self.fd < 0:
            self._taken(len(data))
            return
        self._waiting += data
        self._write()

    def _write(self) -> None:
        if self.fd < 0:
            return
        try:
            while self._waiting:
                num_bytes = os.write(self.fd, self._waiting[:PIECE_BYTES])
                del self._waiting[:num_bytes]
                self._taken(num_bytes)
        except BlockingIOError:
            if not self._registered:
                self.agent.selector.register(self.fd, selectors.EVENT_WRITE, self._write)
                self._registered = True
            return
        except OSError:  # it closed its stdin: what comes is not wanted
            self.close()
            return
        if self._registered:
            self.agent.selector.unregister(self.fd)
            self._registered = False
        if self._ending:
            self.close()

    def _taken(self, num_bytes: int) -> None:
        if self.on_taken is not None and num_bytes:
            self.on_taken(num_bytes)

    def close(self) -> None:
        """Close it; idempotent."""
        if self.fd >= 0:
            if self._registered:
                self.agent.selector.unregister(self.fd)
                self._registered = False
            os.close(self.fd)
            self.fd = -1
            self._taken(len(self._waiting))
            self._waiting.clear()
