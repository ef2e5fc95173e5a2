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


class _Timer(asyncio.TimerHandle):
    """A timer that is ordered by time and then by age: asyncio's own heap leaves ties to chance."""

    __slots__ = ("age",)
    age: int
    _scheduled: bool

    def __lt__(self, other: object) -> bool:
        return (self.when(), self.age) < (other.when(), other.age) if isinstance(other, _Timer) else NotImplemented


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """The event loop behind `run_virtual`: asyncio's own, with the wait for the outside world replaced by a jump.

    It holds no file descriptor. BaseEventLoop asks ``_selector.select(timeout)`` to wait; here the loop is its own
    selector.
    """

    _scheduled: list[asyncio.TimerHandle]
    _clock_resolution: float
    _thread_id: int | None

    def __init__(self, limit_s: float = 1e6) -> None:
        super().__init__()
        self._now = 0.0
        self._limit_s = limit_s
        self._ages = itertools.count()
        self._selector = self
        self._clock_resolution = math.ulp(0.0)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Jump to the next timer; ``timeout`` is 0 where something is ready, None where nothing ever will be."""
        if timeout is None:
            self._stuck("nothing is scheduled and nothing is ready")
        if timeout > 0:
            self._now = self._scheduled[0].when()
            # asyncio fires what is due before now + resolution: the next float keeps two instants apart at any time
            self._clock_resolution = math.ulp(self._now)
            if self._now > self._limit_s:
                self._stuck(f"the limit of {self._limit_s:g} s of virtual time is over")
        return []

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
        timer = _Timer(when, callback, args, self, context)
        timer.age = next(self._ages)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

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

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """Nobody to wake: the loop never waits."""


def _place(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack()
    if not frames:
        return "?"
    code = frames[-1].f_code
    return f"{code.co_filename.rpartition('/')[2]}:{frames[-1].f_lineno} in {code.co_qualname}"
