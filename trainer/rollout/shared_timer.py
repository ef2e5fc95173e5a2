"""Deadlines that are all equally long: one timer of the event loop for them all, however many are open.

`asyncio.timeout` gives the loop a timer each. Those of a hundred thousand episodes make its heap so large that every
other timer pays for it, although hardly one of them is ever met. Equal deadlines end in the order in which they began,
so that only the oldest needs a timer.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from itertools import takewhile


class SharedTimer:
    """Deadlines of ``seconds`` each; for one event loop. Beginning and ending one takes a dictionary operation.

    Args:
        seconds: until a block that is entered now is cancelled.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._open: dict[Deadline, float] = {}  # in the order in which they end
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> Deadline:
        """Return what runs out ``seconds`` after its block was entered: TimeoutError, as of `asyncio.timeout`."""
        return Deadline(self)

    def enter(self, deadline: Deadline) -> None:
        """Note that a block was entered."""
        loop = asyncio.get_running_loop()
        end_s = self._open[deadline] = loop.time() + self.seconds
        if self._timer is None:
            self._timer = loop.call_at(end_s, self._expire, end_s)

    def leave(self, deadline: Deadline) -> None:
        """Note that a block was left; idempotent."""
        self._open.pop(deadline, None)
        if not self._open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self, now_s: float) -> None:
        self._timer = None
        for deadline in list(takewhile(lambda deadline: self._open[deadline] <= now_s, self._open)):
            del self._open[deadline]
            deadline.expire()
        if self._open:
            oldest_s = next(iter(self._open.values()))
            self._timer = asyncio.get_running_loop().call_at(oldest_s, self._expire, oldest_s)


class Deadline(AbstractContextManager["Deadline"]):
    """One deadline, for one block of one task.

    Attributes:
        expired: whether it ran out.
    """

    __slots__ = ("_num_cancelled", "_task", "_timer", "expired")

    def __init__(self, timer: SharedTimer) -> None:
        self._timer = timer
        self._task: asyncio.Task[object] | None = None
        self._num_cancelled = 0
        self.expired = False

    def __enter__(self) -> Deadline:
        self._task = asyncio.current_task()
        assert self._task is not None
        self._num_cancelled = self._task.cancelling()
        self._timer.enter(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *trace: object) -> None:
        self._timer.leave(self)
        # as in asyncio.Timeout: a cancellation from elsewhere is not ours to swallow
        if (
            self.expired
            and self._task is not None
            and self._task.uncancel() <= self._num_cancelled
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError from error

    def expire(self) -> None:
        """Cancel the task that is in the block."""
        self.expired = True
        if self._task is not None:
            self._task.cancel()
