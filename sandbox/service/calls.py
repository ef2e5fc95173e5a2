"""How the service makes a call on the manager: with a deadline, and ended when the client that asked for it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from rollcage.errors import RollcageError
from rollcage.sandbox.errors import DeadlineExceeded, ServiceUnreachable

GRACE_S = 30.0
"""So much longer than a call's own deadline is the one kept here, in case the manager does not keep its own."""

DISCARD_S = 60.0
"""Longest time for reading the rest of a body that nobody wants."""
STALL_S = 600.0
"""A client of a stream that has read nothing for so long is taken for gone."""

T = TypeVar("T")


async def while_connected(scope: Scope, receive: Receive, call: Coroutine[Any, Any, T], *, limit_s: float | None) -> T:
    """Return what ``call`` returns; cancel it where the client leaves first, or the service stops.

    Raises:
        DeadlineExceeded: it took longer than ``limit_s`` seconds.
        ClientDisconnect: the client left.
        ServiceUnreachable: the service stops.
    """
    stopping: asyncio.Future[None] = scope["app"].state.stopping
    running = asyncio.create_task(call)
    leaving = asyncio.create_task(_until_gone(receive))
    try:
        ends: set[asyncio.Future[Any]] = {running, leaving, stopping}
        await asyncio.wait(ends, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return running.result()
        if stopping.done():
            raise ServiceUnreachable("the service stopped during the call.", may_have_happened=True)
        if leaving.done():
            raise ClientDisconnect
        raise DeadlineExceeded(f"the manager did not answer within {limit_s:g} s.")
    finally:
        running.cancel()
        leaving.cancel()
        await asyncio.gather(running, leaving, return_exceptions=True)


async def take_body(chunks: AsyncIterator[bytes], call: Callable[[AsyncIterator[bytes]], Awaitable[None]]) -> None:
    """Let ``call`` read a body. Where it fails, read the rest: a client that still writes would not hear the answer."""
    try:
        await call(chunks)
    except RollcageError:
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_S):
                async for _ in chunks:
                    pass
        raise


async def never() -> Message:
    """Receive nothing: for calls that read the request's body themselves, and so hear that the client leaves."""
    message: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await message


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Streamed(Response):
    """A response whose pieces come from ``chunks``, each sent before the next is asked for.

    Leaving early ends ``chunks``. Its first piece is awaited before the headers are sent, so that an error at once is
    a whole response of its own.

    Args:
        chunks: what is sent.
        media_type: of all of it.
        limit_s: longest time that all of the pieces may take, the client's own not counted.
        hears_leaving: in place of the request's own ``receive``, where somebody else reads the request's body.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        limit_s: float,
        hears_leaving: Receive | None = None,
    ) -> None:
        super().__init__(media_type=media_type, headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._chunks, self._limit_s, self._left_s = chunks, limit_s, limit_s
        self._has_started, self._hears_leaving = False, hears_leaving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response. What goes wrong after its start can only break it off."""
        try:
            await while_connected(scope, self._hears_leaving or receive, self._send(send), limit_s=None)
        except (RollcageError, ClientDisconnect):
            if not self._has_started:
                raise

    async def _send(self, send: Send) -> None:
        async with aclosing(self._chunks) as chunks:
            first = await self._next(chunks)
            self._has_started = True
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            chunk = first
            while chunk is not None:
                try:
                    async with asyncio.timeout(STALL_S):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                except TimeoutError:
                    raise ClientDisconnect from None
                chunk = await self._next(chunks)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self, chunks: AsyncGenerator[bytes, None]) -> bytes | None:
        """Return the next piece; only the waits for pieces count, since a slow client may take its time."""
        loop = asyncio.get_running_loop()
        begin_s = loop.time()
        try:
            async with asyncio.timeout(self._left_s):
                return await anext(chunks, None)
        except TimeoutError:
            raise DeadlineExceeded(f"the manager did not answer within {self._limit_s:g} s.") from None
        finally:
            self._left_s -= loop.time() - begin_s
