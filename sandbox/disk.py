"""Disk: the gate that keeps new sandboxes from a host that is nearly full, and the watcher of what each one writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from rollcage.sandbox.drivers.base import Driver
from rollcage.sandbox.types import MIB


class DiskGate:
    """Whether one host is too full for new sandboxes. It closes below one mark and opens again above a higher one.

    Args:
        min_free_bytes: below this it closes.
        min_free_share: below this share of the whole disk, too, where its size is known.
        hysteresis: it opens again at so many times the mark.
    """

    def __init__(
        self, *, min_free_bytes: int = 2048 * MIB, min_free_share: float = 0.05, hysteresis: float = 1.25
    ) -> None:
        raise NotImplementedError

    @property
    def full(self) -> bool:
        """Whether it is closed; False before the first measurement."""
        raise NotImplementedError

    def update(self, free_disk_bytes: int | None, disk_bytes: int | None = None) -> bool:
        """Take a measurement (None: unknown, nothing changes) and return `full`."""
        raise NotImplementedError

    def check(self, host: str) -> None:
        """Raise DiskPressure, with the numbers, where it is closed."""
        raise NotImplementedError


async def watch_disk(
    driver: Driver,
    manager: str,
    limits: Callable[[], Mapping[str, int]],
    stop: Callable[[str, str], Awaitable[None]],
    *,
    interval_s: float = 3.0,
    timeout_s: float = 6.0,
) -> None:
    """Watch one host for ever: whoever wrote more than its limit is found within ``interval_s`` plus one call.

    Nobody is asked while there are no limits. A call that fails is tried again at the next interval. An offender that is
    still there at a later look, its stop having ended, is stopped again.

    Args:
        driver: of the host.
        manager: whose containers.
        limits: by container name, the most bytes it may write; only those that have a limit.
        stop: ends a container (name, reason in one line); a slow one holds up neither the looks nor other stops.
        interval_s: from one look's start to the next.
        timeout_s: longest wait for the host's answer.
    """
    raise NotImplementedError
