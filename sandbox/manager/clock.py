"""The time of day, watched: leases are spans of time, and must not end because somebody set the clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

JUMP_S = 5.0
"""Less is what any clock drifts between two looks."""


class Clock:
    """Tells the time of day, and when that has jumped: the clock was set, or the machine slept.

    It is looked at every second at least, so that a drift stays below `JUMP_S`.

    Args:
        wall: seconds since the epoch.

    Attributes:
        on_jump: called with the seconds of a jump (negative: back) before anybody hears the new time.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._offset_s: float | None = None
        self.on_jump: Callable[[float], None] = lambda jump_s: None

    def __call__(self) -> float:
        """Return the seconds since the epoch."""
        now = self._wall()
        before_s, self._offset_s = self._offset_s, now - asyncio.get_running_loop().time()
        if before_s is not None and abs(jump_s := self._offset_s - before_s) > JUMP_S:
            self.on_jump(jump_s)
        return now
