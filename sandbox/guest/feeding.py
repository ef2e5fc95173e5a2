"""Input that comes while a command runs: as fast as the command reads it, until it ends or fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from rollcage.sandbox.errors import GuestLost
from rollcage.sandbox.guest.agent.frames import PIECE_BYTES, WINDOW_BYTES
from rollcage.sandbox.guest.call import Call


class Feeding:
    """Sends what ``chunks`` yields to the command of ``call``; leaving its ``async with`` block stops it.

    Args:
        call: fails with what ``chunks`` raises.
        chunks: the input.
        send: sends a message to the agent.
    """

    def __init__(self, call: Call, chunks: AsyncIterator[bytes], send: Callable[[dict[str, Any], bytes], None]) -> None:
        self._call, self._chunks, self._send = call, chunks, send
        self._room = WINDOW_BYTES
        self._has_room = asyncio.Event()
        self._task = asyncio.create_task(self._feed())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    def allow(self, num_bytes: int) -> None:
        """The command has taken so much: as much may follow."""
        self._room += num_bytes
        self._has_room.set()

    async def _feed(self) -> None:
        try:
            async for chunk in self._chunks:
                at = 0
                while at < len(chunk):
                    while self._room <= 0:
                        self._has_room.clear()
                        await self._has_room.wait()
                    piece = chunk[at : at + min(self._room, 4 * PIECE_BYTES)]
                    at += len(piece)
                    self._room -= len(piece)
                    self._send({"op": "data", "id": self._call.id}, piece)
            self._send({"op": "data", "id": self._call.id, "end": True}, b"")
        except GuestLost:
            pass  # the call hears of it too
        except Exception as error:  # noqa: BLE001  (whatever the caller's own iterator raises is the caller's to hear)
            self._call.fail(error)
