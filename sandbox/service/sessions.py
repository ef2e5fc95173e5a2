"""The shells that clients of the service keep open."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rollcage.sandbox.base import Session
from rollcage.sandbox.errors import SandboxNotFound

IDLE_S = 3600.0
"""A shell that nobody has used for so long is closed when the next one is opened: clients die without a word."""


@dataclass(slots=True)
class _Open:
    sandbox_id: str
    session: Session
    used_at: float
    num_running: int = 0


class Sessions:
    """Open shells by id.

    Args:
        clock: seconds, of any origin.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._open: dict[str, _Open] = {}
        self._clock = clock

    async def add(self, sandbox_id: str, session: Session) -> str:
        """Keep a shell; returns its id."""
        session_id = secrets.token_hex(8)
        self._open[session_id] = _Open(sandbox_id, session, self._clock())
        idle = [key for key, it in self._open.items() if not it.num_running and self._clock() - it.used_at > IDLE_S]
        for key in idle:
            await self.close(self._open[key].sandbox_id, key)
        return session_id

    @contextmanager
    def using(self, sandbox_id: str, session_id: str) -> Iterator[Session]:
        """Lend a shell, which is not idle meanwhile; raises SandboxNotFound."""
        found = self._open.get(session_id)
        if found is None or found.sandbox_id != sandbox_id:
            raise SandboxNotFound(f"sandbox {sandbox_id!r} has no session {session_id!r}: it was closed, or never was.")
        found.num_running += 1
        try:
            yield found.session
        finally:
            found.num_running -= 1
            found.used_at = self._clock()

    async def close(self, sandbox_id: str, session_id: str) -> None:
        """Close a shell; nothing where there is none."""
        found = self._open.get(session_id)
        if found is not None and found.sandbox_id == sandbox_id:
            del self._open[session_id]
            await found.session.close()

    async def close_all(self, sandbox_id: str | None = None) -> None:
        """Close the shells of one sandbox, or all."""
        for key, it in list(self._open.items()):
            if sandbox_id is None or it.sandbox_id == sandbox_id:
                await self.close(it.sandbox_id, key)
