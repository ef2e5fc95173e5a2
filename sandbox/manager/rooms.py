"""What a sandbox's handle asks of its manager."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rollcage.sandbox.errors import BadSpec, DeadlineExceeded
from rollcage.sandbox.manager.box import LIVE, Box, Life
from rollcage.sandbox.manager.creations import Creations
from rollcage.sandbox.manager.fleet import Fleet
from rollcage.sandbox.manager.lives import Lives
from rollcage.sandbox.manager.snapshots import Snapshots
from rollcage.sandbox.manager.store import DELETED
from rollcage.sandbox.types import Snapshot, State

RETRY_S = 0.5
FORK_DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Rooms:
    """The manager's rooms."""

    fleet: Fleet
    lives: Lives
    creations: Creations
    snapshots: Snapshots

    async def present_life(self, box: Box, deadline: float) -> Life:
        """Return the connection to a sandbox, once it has one.

        Raises:
            SandboxUnavailable: it is dead, paused or deleted.
            DeadlineExceeded: it has no connection by ``deadline``.
        """
        if box.life is not None and box.info.state is not State.STOPPED and box.row.desired != DELETED:
            return box.life
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    state = box.info.state
                    if state in (State.STOPPED, State.FAILED, State.DELETED) or box.row.desired == DELETED:
                        raise box.unavailable()
                    if box.life is not None:
                        return box.life
                    if state in LIVE:
                        await asyncio.wait([self.lives.suspect(box)])
                        if box.life is None and box.info.state is state:
                            await asyncio.sleep(RETRY_S)
                    else:
                        await box.changed()
        except TimeoutError:
            text = f"sandbox {box.info.id} is {box.info.state} and took no call by the call's deadline"
            raise DeadlineExceeded(f"{text}: {box.info.message}".rstrip(": ")) from None

    async def fork(self, box: Box, snapshot: Snapshot, key: str) -> Box:
        """Create a sandbox like this one from a snapshot."""
        info = box.info
        return await self.creations.create(
            info.spec, key=key, owner=info.owner, deadline_s=FORK_DEADLINE_S, origin=snapshot
        )

    def renew(self, box: Box, ttl_s: float | None) -> None:
        """Let its lease run from now on; raises SandboxUnavailable, BadSpec."""
        if box.info.state is State.DELETED or box.row.desired == DELETED:
            raise box.unavailable()
        ttl_s = box.info.spec.ttl_s if ttl_s is None else ttl_s
        if not 0 <= ttl_s < float("inf"):
            raise BadSpec(f"ttl_s must be a number of seconds, or 0 for no end, not {ttl_s}")
        if box.info.state is State.FAILED:  # nobody should find it in the list for ever
            ttl_s = ttl_s or self.fleet.settings.failed_ttl_s
        expires_at = self.fleet.clock() + ttl_s if ttl_s else 0.0
        self.fleet.move(box, "renewed", {"expires_at": expires_at}, expires_at=expires_at)
