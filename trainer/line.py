"""The line to a worker in another process: calls out, replies in, and nothing blocks."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

from rollcage.errors import RollcageError
from rollcage.trainer.wire import HEADER, pack


class Line:
    """Calls ``(number, method, arguments)`` that are answered with ``(number, outcome, value)``.

    Outcome "ok"; "refused" (value is an exception of ours, raised here) where the worker goes on; "error" (value is
    text) where it ends. Used from one event loop.

    Args:
        name: of the worker, for messages.
        died: raised in every call when the worker is gone.
    """

    def __init__(self, name: str, *, died: type[RollcageError]) -> None:
        self._name, self._died = name, died
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._num_calls = 0
        self._death: str | None = None
        self._listener: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    def listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Begin to take replies from ``reader``; to be called once."""
        self._writer = writer
        self._listener = asyncio.create_task(self._listen(reader), name=self._name)

    async def call(self, method: str, *arguments: Any) -> Any:
        """Let the worker run ``method`` and return what it returns. The caller sets the deadline.

        Raises:
            RollcageError: ``died`` where the worker is gone, or goes, or the method raised there; else what it refused
                the call with.
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

    @property
    def pid(self) -> int:
        """Process id of the worker where it is ours, and 0 where it is not."""
        return 0

    def describe_log(self) -> str:
        """Return the last lines of the worker's output, for an error message."""
        return ""

    async def close(self) -> None:
        """Hang up; idempotent."""
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
            self._listener = None
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
            await asyncio.sleep(0)  # lets the transport close its socket
        self._fail(f"{self._name} is closed")

    async def _ended(self) -> str:
        """Clear away what the worker left, and return how it ended, for an error message."""
        return f"{self._name} closed the connection"

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
                number, outcome, value = pickle.loads(await reader.readexactly(size))
                reply = self._replies.pop(number, None)
                if reply is not None and not reply.done():  # a cancelled call does not wait for its reply
                    reply.set_result((outcome, value))
        except (asyncio.IncompleteReadError, OSError):
            self._fail(await self._ended())

    def _fail(self, reason: str) -> None:
        """Answer whoever waits, now and later, with ``died``."""
        self._death = self._death or reason
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(self._died(self._death))
        self._replies.clear()
