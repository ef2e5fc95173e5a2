"""HTTP for a server with bounded patience: who does not say what is wanted is let go."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0
"""Longest wait for the head of a request, from its first byte on, or from the connection's beginning."""


class PatientProtocol(H11Protocol):
    """Uvicorn's protocol, which by itself waits for the rest of a head for ever, and holds the connection so long."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self._waiting = self.loop.call_later(HEAD_S, self._give_up)

    def data_received(self, data: bytes) -> None:
        """Take in what came; a request that is whole ends the wait, half of one begins it."""
        super().data_received(data)
        if self._is_answering:
            self._end_wait()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(HEAD_S, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait."""
        self._end_wait()
        super().connection_lost(exc)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _give_up(self) -> None:
        self._waiting = None
        if not self._is_answering:
            self.transport.close()

    def _end_wait(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
