"""A circuit breaker per host: a daemon that fails or dawdles is left alone for a while, then tried with one call."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from rollcage.sandbox.errors import DaemonUnreachable, HostUnavailable, SandboxError

T = TypeVar("T")

OWN_LOAD = 0.25
"""Each heavy call that is under way lengthens by so much of itself the time after which a light one counts as slow:
what our own burst costs a small host says nothing against it, and a sick one is still found out a little later."""


class Circuit(StrEnum):
    """What a breaker does with a call."""

    CLOSED = "closed"
    """Calls pass."""
    OPEN = "open"
    """Calls are refused at once: the host is quarantined."""
    HALF_OPEN = "half-open"
    """One call may pass and decides; the others are refused."""


class Breaker:
    """Watches the calls to one host's daemon.

    Failures are DaemonUnreachable, HostUnavailable, and calls that run into their deadline. Everything else that the
    daemon says, such as ImageMissing, is an answer. A call that is cancelled says nothing, unless it was slow already.
    A call that began before the last change of state says nothing about the new one.

    Args:
        host: for messages.
        num_recent: so many last calls count.
        num_bad: it opens when so many of them failed or were slow.
        open_s: how long it stays open at first; doubled each time that the trial fails, jittered by a quarter.
        max_open_s: longest of these, before the jitter: so long at most goes by until a host that is back is used.
        on_change: called, in the event loop, with OPEN each time it opens, and with CLOSED when it closes.
        rng: for the jitter.
    """

    def __init__(
        self,
        host: str = "",
        *,
        num_recent: int = 20,
        num_bad: int = 5,
        open_s: float = 2.0,
        max_open_s: float = 15.0,
        on_change: Callable[[Circuit], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._host = host
        self._num_bad, self._open_s, self._max_open_s = num_bad, open_s, max_open_s
        self._on_change, self._rng = on_change, rng or random.Random()
        self._recent: deque[bool] = deque(maxlen=num_recent)  # whether each was bad
        self._num_trips = 0  # since it was last closed
        self._epoch = 0  # grows with each change between closed and open
        self._retry_at = 0.0
        self._trial: _Ticket | None = None
        self._last_failure = ""
        self._num_heavy = 0  # under way
        self._silent_since: float | None = None
        self._silent_until = 0.0

    @property
    def state(self) -> Circuit:
        """The state now: it becomes HALF_OPEN by the passing of time alone."""
        if not self._num_trips:
            return Circuit.CLOSED
        return Circuit.OPEN if asyncio.get_running_loop().time() < self._retry_at else Circuit.HALF_OPEN

    @property
    def retry_at(self) -> float:
        """When the next trial may start, in the event loop's time; 0 where it is closed."""
        return self._retry_at

    @property
    def silent_s(self) -> float:
        """For how long every call has failed, from the start of the first until the last; 0 since the last answer.

        A slow answer is an answer, and a call that was refused here is none that failed.
        """
        return 0.0 if self._silent_since is None else self._silent_until - self._silent_since

    async def call(
        self, operation: Callable[[], Awaitable[T]], *, timeout_s: float, slow_s: float, is_heavy: bool = False
    ) -> T:
        """Run one call to the daemon, or refuse it.

        Args:
            operation: makes the call; only called where it may pass.
            timeout_s: then it is cancelled.
            slow_s: a call that has no answer by then counts as bad, at once, whatever comes of it; later where heavy
                calls are under way.
            is_heavy: it keeps the daemon busy, and is not slower for others that do.

        Raises:
            HostUnavailable: refused, or no answer within ``timeout_s``.
        """
        ticket = self._admit()
        ticket.slow_s = slow_s
        ticket.num_heavy = None if is_heavy else self._num_heavy
        ticket.slow = asyncio.get_running_loop().call_later(slow_s, self._judge_slow, ticket)
        self._num_heavy += is_heavy
        try:
            async with asyncio.timeout(timeout_s):
                answer = await operation()
        except (DaemonUnreachable, HostUnavailable) as error:
            self._heard_nothing(ticket)
            self._judge(ticket, str(error))
            raise
        except TimeoutError:
            self._heard_nothing(ticket)
            self._judge(ticket, f"no answer within {timeout_s:g} s")
            raise HostUnavailable(f"Host {self._host!r}: no answer within {timeout_s:g} s.") from None
        except SandboxError:
            self._silent_since = None
            self._judge(ticket, "")
            raise
        else:
            self._silent_since = None
            self._judge(ticket, "")
            return answer
        finally:
            self._num_heavy -= is_heavy
            if ticket.slow is not None:
                ticket.slow.cancel()
            if self._trial is ticket:  # cancelled: the next call is the trial
                self._trial = None

    async def stream(self, operation: Callable[[], AsyncIterator[T]]) -> AsyncIterator[T]:
        """Yield from a stream that has no end of its own, or refuse it; only its failure counts, and it is no trial.

        Raises:
            HostUnavailable: refused, for the breaker is not closed.
        """
        if self._num_trips:
            raise self._refusal()
        ticket = _Ticket(self._epoch, asyncio.get_running_loop().time())
        stream = operation()
        try:
            async for item in stream:
                yield item
        except (DaemonUnreachable, HostUnavailable) as error:
            self._judge(ticket, str(error))
            raise
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    def _admit(self) -> _Ticket:
        ticket = _Ticket(self._epoch, asyncio.get_running_loop().time())
        if self.state is Circuit.HALF_OPEN and self._trial is None:
            self._trial = ticket
        elif self._num_trips:
            raise self._refusal()
        return ticket

    def _refusal(self) -> HostUnavailable:
        wait_s = max(0.0, self._retry_at - asyncio.get_running_loop().time())
        return HostUnavailable(
            f"Host {self._host!r} is quarantined, tried again in {wait_s:.1f} s. Last failure: {self._last_failure}"
        )

    def _judge_slow(self, ticket: _Ticket) -> None:
        """Count a call that has no answer as slow, now or, for our own load, somewhat later."""
        loop = asyncio.get_running_loop()
        waited_s, allowed_s = loop.time() - ticket.begin_s, ticket.slow_s
        if ticket.num_heavy is not None:
            ticket.num_heavy = max(ticket.num_heavy, self._num_heavy)
            allowed_s *= 1 + OWN_LOAD * ticket.num_heavy
        if waited_s < allowed_s - 1e-6:
            ticket.slow = loop.call_later(allowed_s - waited_s, self._judge_slow, ticket)
        else:
            self._heard_nothing(ticket)
            self._judge(ticket, f"no answer after {waited_s:g} s")

    def _heard_nothing(self, ticket: _Ticket) -> None:
        if self._silent_since is None:
            self._silent_since = ticket.begin_s
        self._silent_until = asyncio.get_running_loop().time()

    def _judge(self, ticket: _Ticket, failure: str) -> None:
        """Count a call, once; ``failure`` is "" for an answer in time."""
        if ticket.is_judged:
            return
        ticket.is_judged = True
        self._last_failure = failure or self._last_failure
        if ticket is self._trial:
            self._trial = None
            if failure:
                self._open()
            else:
                self._num_trips, self._retry_at = 0, 0.0
                self._turn(Circuit.CLOSED)
        elif ticket.epoch == self._epoch and not self._num_trips:
            self._recent.append(bool(failure))
            if sum(self._recent) >= self._num_bad:
                self._open()

    def _open(self) -> None:
        self._num_trips += 1
        pause_s = min(self._max_open_s, self._open_s * 2.0 ** min(self._num_trips - 1, 30))
        self._retry_at = asyncio.get_running_loop().time() + pause_s * self._rng.uniform(0.75, 1.25)
        self._turn(Circuit.OPEN)

    def _turn(self, state: Circuit) -> None:
        self._epoch += 1
        self._recent.clear()
        if self._on_change is not None:
            self._on_change(state)


@dataclass(slots=True, eq=False)
class _Ticket:
    """One call on its way."""

    epoch: int
    begin_s: float
    slow_s: float = 0.0
    num_heavy: int | None = None  # at most at once beside it; None: it is one of them
    slow: asyncio.TimerHandle | None = None
    is_judged: bool = False
