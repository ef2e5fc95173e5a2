"""Virtual time: run asyncio code in which a sleep costs nothing and every run is the same.

The orchestration (scheduler, slots, router, buffer, loop) tells and spends time only through the running event loop
(`asyncio.sleep`, `asyncio.timeout`, `loop.time()`): the loop is the injected clock. Under `asyncio.run` it runs in wall
time; under `run_virtual` the same code runs with simulated engines, environments and learners, hours in moments.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import math
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, NoReturn, TypeVar, TypeVarTuple

from rollcage.errors import RollcageError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class DeadlockError(RollcageError):
    """Virtual time cannot go on: tasks wait, and nothing is scheduled that could wake them (or the limit is over)."""


def run_virtual(main: Callable[[], Coroutine[Any, Any, T]], *, limit_s: float = 1e6) -> T:
    """Run ``main()`` to its end in virtual time, from 0 s, and return its result.

    Whenever no callback is ready the clock jumps to the next timer. Timers of the same instant fire in the order in
    which they were set. Equal programs run equally, as long as they let no set of tasks or futures (such as those of
    `asyncio.wait`) choose an order.

    Threads, subprocesses and sockets have no place here, for they take wall time: `asyncio.to_thread` and calls from
    other threads raise RuntimeError, the rest raises NotImplementedError.

    Args:
        main: called without arguments, gives the coroutine to run.
        limit_s: virtual time at which a run is taken to be stuck although something, such as a heartbeat, still ticks.

    Raises:
        DeadlockError: ``main`` waits for what can never come; the message names every waiting task and its place.

    >>> async def main():
    ...     await asyncio.sleep(3600)
    ...     return asyncio.get_running_loop().time()
    >>> run_virtual(main)
    3600.0
    """
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(limit_s)) as runner:
        return runner.run(main())


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """The event loop behind `run_virtual`: asyncio's own, with the wait for the outside world replaced by a jump.

    It holds no file descriptor. Timers are kept by time and then by age: asyncio's own heap leaves ties to chance.
    """

    _ready: deque[asyncio.Handle]
    _thread_id: int | None
    _stopping: bool

    def __init__(self, limit_s: float = 1e6) -> None:
        super().__init__()
        self._now = 0.0
        self._limit_s = limit_s
        self._ages = itertools.count()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._num_cancelled = 0

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call ``callback(*args)`` at the virtual time ``when``, after the calls that were set for it earlier."""
        if self.is_closed():
            raise RuntimeError("the event loop is closed")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined]  # so that it tells of its cancellation
        heapq.heappush(self._timers, (when, next(self._ages), timer))
        return timer

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        """Forget cancelled timers once they are most of all: deadlines are set by the thousand and seldom met."""
        if not timer._scheduled:  # type: ignore[attr-defined]
            return  # it has fired, as that of every sleep that came to its end
        self._num_cancelled += 1
        if self._num_cancelled > 100 + len(self._timers) // 2:
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._num_cancelled = 0

    def _run_once(self) -> None:
        """Run what is ready; where nothing is, jump to the next timer first. `run_forever` calls this in a loop."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
            self._num_cancelled -= 1
        if not self._ready and not self._stopping:
            if not self._timers:
                self._stuck("nothing is scheduled and nothing is ready")
            self._now = max(self._now, self._timers[0][0])
            if self._now > self._limit_s:
                self._stuck(f"the limit of {self._limit_s:g} s of virtual time is over")
        while self._timers and self._timers[0][0] <= self._now:
            _, _, timer = heapq.heappop(self._timers)
            if timer.cancelled():
                self._num_cancelled -= 1
            else:
                timer._scheduled = False  # type: ignore[attr-defined]
                self._ready.append(timer)
        for _ in range(len(self._ready)):  # what these callbacks make ready waits for the next round
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Call ``callback(*args)`` in the next round; without asyncio's checks, for all that happens comes by here."""
        if self.is_closed():
            raise RuntimeError("the event loop is closed")
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As `call_soon`; from another thread, which virtual time cannot wait for, RuntimeError."""
        if self._thread_id not in (None, threading.get_ident()):
            raise RuntimeError("virtual time: another thread called into the loop; use scripted or simulated parts")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> NoReturn:
        """RuntimeError: virtual time cannot wait for a thread or a process."""
        raise RuntimeError("virtual time cannot wait for a thread or process; use scripted or simulated parts")

    def _stuck(self, why: str) -> NoReturn:
        waiting = sorted(f"{task.get_name()} at {_place(task)}" for task in asyncio.all_tasks(self))
        self._limit_s = math.inf  # the clean-up that follows may still sleep
        raise DeadlockError(f"virtual time stands at {self._now:g} s: {why}; waiting: {'; '.join(waiting)}")

    def _write_to_self(self) -> None:
        """Nobody to wake: the loop never waits."""


def _place(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack()
    if not frames:
        return "?"
    code = frames[-1].f_code
    return f"{code.co_filename.rpartition('/')[2]}:{frames[-1].f_lineno} in {code.co_qualname}"
