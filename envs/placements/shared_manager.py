"""The sandboxes that all placements of one event loop share: two managers cannot have the same folder."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from rollcage.sandbox.base import Sandboxes


@dataclass(slots=True)
class _Opened:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    sandboxes: Sandboxes | None = None
    num_users: int = 0


_OPENED: WeakKeyDictionary[asyncio.AbstractEventLoop, _Opened] = WeakKeyDictionary()


class Shared:
    """One placement's share.

    Args:
        given: sandboxes to use instead; they are not closed here.
    """

    def __init__(self, given: Sandboxes | None = None) -> None:
        self._given = given
        self._opened: _Opened | None = None

    async def sandboxes(self) -> Sandboxes:
        """Return the sandboxes; the first call opens them.

        Raises:
            UserError: see `rollcage.sandbox.opening.open_default`.
        """
        if self._given is not None:
            return self._given
        from rollcage.sandbox.opening import open_default

        opened = _OPENED.setdefault(asyncio.get_running_loop(), _Opened())
        async with opened.lock:
            if opened.sandboxes is None:
                opened.sandboxes = await open_default()
            if self._opened is None:
                self._opened = opened
                opened.num_users += 1
            return opened.sandboxes

    async def close(self) -> None:
        """Give the share back; the last one closes them. Idempotent."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        async with opened.lock:
            opened.num_users -= 1
            if opened.num_users == 0 and opened.sandboxes is not None:
                sandboxes, opened.sandboxes = opened.sandboxes, None
                await sandboxes.close()
