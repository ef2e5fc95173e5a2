"""A circuit breaker per host: a daemon that fails or dawdles is left alone for a while, then tried with one call."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeVar

from rollcage.sandbox.drivers.base import Driver

T = TypeVar("T")


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
    daemon says, such as ImageMissing, is an answer. A call that is cancelled says nothing.

    Args:
        host: for messages.
        num_recent: so many last calls count.
        num_bad: it opens when so many of them failed or were slow.
        open_s: how long it stays open at first; doubled each time that the trial fails, jittered by a quarter.
        max_open_s: longest of these.
        on_change: called, in the event loop, with the new state.
        rng: for the jitter.
    """

    def __init__(
        self,
        host: str = "",
        *,
        num_recent: int = 20,
        num_bad: int = 5,
        open_s: float = 2.0,
        max_open_s: float = 60.0,
        on_change: Callable[[Circuit], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        raise NotImplementedError

    @property
    def state(self) -> Circuit:
        """The state now: it becomes HALF_OPEN by the passing of time alone."""
        raise NotImplementedError

    @property
    def retry_at(self) -> float:
        """When the next trial may start, in the event loop's time; 0 where it is closed."""
        raise NotImplementedError

    async def call(self, operation: Callable[[], Awaitable[T]], *, timeout_s: float, slow_s: float) -> T:
        """Run one call to the daemon, or refuse it.

        Args:
            operation: makes the call; only called where it may pass.
            timeout_s: then it is cancelled.
            slow_s: an answer that takes longer counts as bad.

        Raises:
            HostUnavailable: refused, or no answer within ``timeout_s``.
        """
        raise NotImplementedError


def guarded(driver: Driver, breaker: Breaker, *, call_timeout_s: float = 60.0, slow_s: float = 5.0) -> Driver:
    """Return a driver whose every call goes through ``breaker``.

    Calls that move much data or start something (create, commit, remove_image, written_bytes) get ten times both limits.
    `Driver.events` is refused while the breaker is not closed; else only its failures count. `Driver.close` always passes.

    Args:
        driver: of the host.
        breaker: of the same host.
        call_timeout_s: longest wait for an answer; the driver's own deadlines are shorter.
        slow_s: an answer that takes longer counts as bad.
    """
    raise NotImplementedError
