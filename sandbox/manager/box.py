"""One sandbox in the manager's memory, and the fence around the calls that are made to one of its lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rollcage.sandbox.errors import DeadlineExceeded, SandboxError, SandboxUnavailable
from rollcage.sandbox.guest.base import Guest
from rollcage.sandbox.manager.places import Place
from rollcage.sandbox.manager.store import Row
from rollcage.sandbox.types import SandboxInfo, State

LIVE = (State.READY, State.UNHEALTHY, State.STOPPED)
"""States in which there is a container that was ready once."""


def container_name(sandbox_id: str, generation: int) -> str:
    """Return the name of the container that is a sandbox's life: no two lives ever have the same."""
    return f"rollcage-{sandbox_id}-{generation}"


class Life:
    """The connection to one life of a sandbox.

    Args:
        generation: of the life.
        guest: the connection.
    """

    def __init__(self, generation: int, guest: Guest) -> None:
        self.generation, self.guest = generation, guest
        self._why: Callable[[], SandboxError] | None = None
        self._calls: set[asyncio.Timeout] = set()

    @property
    def error(self) -> SandboxError | None:
        """Why the life has ended, made anew for whoever raises it; None while it has not."""
        return None if self._why is None else self._why()

    @asynccontextmanager
    async def call(self, deadline: float) -> AsyncIterator[asyncio.Timeout]:
        """Fence a call: it ends when the life does, or at ``deadline`` (loop time), which its owner may move.

        Raises:
            DeadlineExceeded, and the life's `error`.
        """
        if (error := self.error) is not None:
            raise error
        scope = asyncio.timeout_at(deadline)
        try:
            async with scope:
                self._calls.add(scope)
                try:
                    yield scope
                finally:
                    self._calls.discard(scope)
        except TimeoutError:
            if (error := self.error) is not None:
                raise error from None
            if scope.expired():
                raise DeadlineExceeded("the sandbox gave no answer by the call's deadline") from None
            raise

    def end(self, why: Callable[[], SandboxError]) -> None:
        """End it, and every call in flight with the error that ``why`` makes; the first reason stays."""
        if self._why is None:
            self._why = why
            for scope in self._calls:
                scope.reschedule(asyncio.get_running_loop().time())


class Box:
    """A sandbox in memory; ``row`` is what the store knows of it.

    Attributes:
        lock: held by whoever changes what it is.
        life: the connection to its present life, None where there is none (yet).
        lost: connections that broke, until it is known why.
        place: its room on the host.
        work: the task that creates or recovers it.
        examination: the task that finds out what has become of it.
        alone_since_s: when a probe first found it without a connection (loop time); None while it has one.
        spared_until: it is not removed before, though its lease has ended: see `Settings.return_s`.
        num_oom_kills: processes of its present life that were killed for memory, as far as that was told.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self.lock = asyncio.Lock()
        self.life: Life | None = None
        self.lost: list[Life] = []
        self.place: Place | None = None
        self.work: asyncio.Task[None] | None = None
        self.examination: asyncio.Task[None] | None = None
        self.alone_since_s: float | None = None
        self.spared_until = 0.0
        self.num_oom_kills = 0
        self._changed = asyncio.Event()

    @property
    def info(self) -> SandboxInfo:
        """What its users may know of it."""
        return self.row.info

    @property
    def name(self) -> str:
        """The container of its present life."""
        return container_name(self.info.id, self.info.generation)

    def tell_changed(self) -> None:
        """Wake those that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed(self) -> None:
        """Wait for the next change of its state or connection."""
        await self._changed.wait()

    def unavailable(self) -> SandboxUnavailable:
        """Return the error for whoever calls it now."""
        info = self.info
        why = f": {info.message}" if info.message else ""
        return SandboxUnavailable(
            f"sandbox {info.id} is {info.state}{why}",
            state=info.state,
            exit_code=info.exit_code,
            oom_killed=info.oom_killed,
            log_tail=self.row.log_tail,
        )

    def release(self) -> None:
        """Give its room back."""
        if self.place is not None:
            self.place.release()
            self.place = None
