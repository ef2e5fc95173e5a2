"""The ledger of what is promised on each host, and the places that sandboxes hold there."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

from rollcage.sandbox.errors import SandboxUnavailable
from rollcage.sandbox.types import HostInfo, SandboxSpec

NANO = 10**9
"""CPU shares are added up in whole billionths, as Docker counts them: sums of floats would drift."""


@dataclass(slots=True)
class Promised:
    """What is promised on one host; of it, ``num_starts`` sandboxes are being started."""

    num_sandboxes: int = 0
    nano_cpus: int = 0
    memory_bytes: int = 0
    num_starts: int = 0


class Ledger:
    """What is promised on each host, by name.

    Args:
        on_release: called whenever something was given back.
    """

    def __init__(self, on_release: Callable[[], None]) -> None:
        self.on_release = on_release
        self._promised: defaultdict[str, Promised] = defaultdict(Promised)

    def num_starts(self, host: str) -> int:
        """Return how many sandboxes are being started there."""
        return self._promised[host].num_starts

    def filled(self, host: HostInfo) -> HostInfo:
        """Return ``host`` with its num_sandboxes, reserved_cpus and reserved_memory_bytes filled in."""
        promised = self._promised[host.name]
        return replace(
            host,
            num_sandboxes=promised.num_sandboxes,
            reserved_cpus=promised.nano_cpus / NANO,
            reserved_memory_bytes=promised.memory_bytes,
        )

    def book(self, host: str, spec: SandboxSpec, num: int) -> None:
        """Add ``num`` (1, or -1) sandboxes like ``spec`` to what is promised on a host."""
        promised = self._promised[host]
        promised.num_sandboxes += num
        promised.nano_cpus += num * round(spec.cpus * NANO)
        promised.memory_bytes += num * spec.memory_bytes

    def book_start(self, host: str, num: int) -> None:
        """Add ``num`` (1, or -1) starts to those under way on a host."""
        self._promised[host].num_starts += num


class Place:
    """A promise of room on one host: its share of CPU and memory, and, until `started`, one of its starts.

    Attributes:
        host: its name.
        spec: what the room is for.
        is_held: until it is released.
        is_starting: it holds one of its host's starts.
        start: what a new life waits for that waits for a start.
    """

    def __init__(self, ledger: Ledger, host: str, spec: SandboxSpec) -> None:
        self.host, self.spec = host, spec
        self.is_held, self.is_starting = True, False
        self.start: asyncio.Future[None] | None = None
        self._ledger = ledger
        ledger.book(host, spec, 1)

    def begin_start(self) -> None:
        """Take one of the host's starts."""
        self.is_starting = True
        self._ledger.book_start(self.host, 1)

    def started(self) -> None:
        """Give back the start: the sandbox is ready, or its start has failed. Idempotent."""
        if self.is_starting:
            self.is_starting = False
            self._ledger.book_start(self.host, -1)
            self._ledger.on_release()

    def release(self) -> None:
        """Give back all of it: the container is gone. Idempotent."""
        if not self.is_held:
            return
        self.is_held = False
        self._ledger.book(self.host, self.spec, -1)
        if self.start is not None and not self.start.done():
            self.start.set_exception(SandboxUnavailable("it was removed while its new life waited for a start"))
        if self.is_starting:
            self.started()  # which tells
        else:
            self._ledger.on_release()
