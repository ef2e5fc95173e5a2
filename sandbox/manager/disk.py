"""Disk: the gate that keeps new sandboxes from a host that is nearly full, and the watcher of what each one writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from rollcage.sandbox.drivers.base import Driver
from rollcage.sandbox.errors import DiskPressure, SandboxError
from rollcage.sandbox.types import MIB


class DiskGate:
    """Whether one host is too full for new sandboxes. It closes below one mark and opens again above a higher one.

    Args:
        min_free_bytes: below this it closes.
        min_free_share: below this share of the whole disk, too, where its size is known.
        hysteresis: it opens again at so many times the mark.

    >>> gate = DiskGate(min_free_bytes=100, hysteresis=1.5)
    >>> [gate.update(free) for free in (120, 99, 120, 149, 150, 120)]
    [False, True, True, True, False, False]
    """

    def __init__(
        self, *, min_free_bytes: int = 2048 * MIB, min_free_share: float = 0.05, hysteresis: float = 1.25
    ) -> None:
        self._min_free_bytes, self._min_free_share, self._hysteresis = min_free_bytes, min_free_share, hysteresis
        self._full = False
        self._free_bytes = 0
        self._mark_bytes = float(min_free_bytes)

    @property
    def full(self) -> bool:
        """Whether it is closed; False before the first measurement."""
        return self._full

    def update(self, free_disk_bytes: int | None, disk_bytes: int | None = None) -> bool:
        """Take a measurement (None: unknown, nothing changes) and return `full`."""
        if free_disk_bytes is not None:
            self._free_bytes = free_disk_bytes
            self._mark_bytes = max(self._min_free_bytes, self._min_free_share * (disk_bytes or 0))
            self._full = free_disk_bytes < self._mark_bytes * (self._hysteresis if self._full else 1)
        return self._full

    def check(self, host: str) -> None:
        """Raise DiskPressure, with the numbers, where it is closed."""
        if self._full:
            needed = self._mark_bytes * self._hysteresis
            raise DiskPressure(
                f"Host {host!r} has {self._free_bytes / MIB:.0f} MiB of free disk: no new sandboxes below "
                f"{self._mark_bytes / MIB:.0f} MiB, and then until {needed / MIB:.0f} MiB are free. Make room."
            )


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

    Nobody is asked while there are no limits. A call that fails is tried again at the next interval. An offender that
    is still there at a later look, its stop having ended, is stopped again.

    Args:
        driver: of the host.
        manager: whose containers.
        limits: by container name, the most bytes it may write; only those that have a limit.
        stop: ends a container (name, reason in one line); a slow one holds up neither the looks nor other stops.
            A SandboxError of it is taken as "try again".
        interval_s: from one look's start to the next; a third of it is always left between two, for looking costs.
        timeout_s: longest wait for the host's answer.
    """
    loop = asyncio.get_running_loop()
    being_stopped: set[str] = set()

    async def end(name: str, reason: str) -> None:
        try:
            await stop(name, reason)
        except SandboxError:
            pass  # the next look finds it again
        finally:
            being_stopped.discard(name)

    async with asyncio.TaskGroup() as stops:
        while True:
            next_look = loop.time() + interval_s
            if limits():
                written = await _written_bytes(driver, manager, timeout_s)
                now_limits = limits()  # some may have gone while the host counted
                for name in sorted(written.keys() & now_limits.keys() - being_stopped):
                    if written[name] > now_limits[name]:
                        being_stopped.add(name)
                        reason = (
                            f"wrote {written[name] / MIB:.1f} MiB; disk_bytes allows {now_limits[name] / MIB:.1f} MiB"
                        )
                        stops.create_task(end(name, reason), name=f"stop {name}")
            await asyncio.sleep(max(next_look - loop.time(), interval_s / 3))


async def _written_bytes(driver: Driver, manager: str, timeout_s: float) -> Mapping[str, int]:
    try:
        async with asyncio.timeout(timeout_s):
            return await driver.written_bytes(manager)
    except (SandboxError, TimeoutError):
        return {}
