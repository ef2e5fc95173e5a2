"""Pausing a run: nothing new is begun until it is resumed; what is under way is finished."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Pause:
    """A switch that scheduler and loop look at before they begin anything. For one event loop; times are its clock's.

    Attributes:
        num: pauses so far.
    """

    def __init__(self) -> None:
        self.num = 0
        self._open = asyncio.Event()
        self._open.set()
        self._since_s = self._past_s = 0.0
        self._on_resume: list[Callable[[], None]] = []

    @property
    def is_on(self) -> bool:
        """Whether it is paused now."""
        return not self._open.is_set()

    @property
    def total_s(self) -> float:
        """Seconds spent paused so far, in all."""
        return self._past_s + (asyncio.get_running_loop().time() - self._since_s if self.is_on else 0.0)

    def pause(self) -> bool:
        """Pause; returns False where it is paused already."""
        if self.is_on:
            return False
        self.num += 1
        self._since_s = asyncio.get_running_loop().time()
        self._open.clear()
        return True

    def resume(self) -> bool:
        """Go on; returns False where it is not paused."""
        if not self.is_on:
            return False
        self._past_s = self.total_s
        self._open.set()
        for told in self._on_resume:
            told()
        return True

    def on_resume(self, told: Callable[[], None]) -> None:
        """Call ``told`` at every resume."""
        self._on_resume.append(told)

    async def passed(self) -> None:
        """Wait while it is paused."""
        await self._open.wait()
