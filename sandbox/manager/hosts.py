"""One host as the manager works with it: its driver behind the breaker, its size, its disk gate, what is left on it."""

from __future__ import annotations

import asyncio

from rollcage.sandbox.drivers.base import Driver, HostStatus
from rollcage.sandbox.errors import SandboxError
from rollcage.sandbox.manager.breaker import Breaker, Circuit
from rollcage.sandbox.manager.disk import DiskGate
from rollcage.sandbox.manager.places import Place
from rollcage.sandbox.types import HostInfo


class Host:
    """A host.

    Args:
        name: the user's.
        driver: behind the breaker, as `guarded` returns it.
        breaker: the same.
        num_hands: parallel removals, commits and reconnections.

    Attributes:
        drained: it gets no new sandboxes.
        error: why it did not answer when it was last looked at; None where it did.
        hands: hold one for a removal, commit or reconnection.
        cores_used: by container, what its probes measured last.
        leftovers: containers that shall go and may still be there, with the room that they take.
    """

    def __init__(self, name: str, driver: Driver, breaker: Breaker, *, num_hands: int) -> None:
        self.name, self.driver = name, driver
        self.drained = False
        self.error: SandboxError | None = None
        self.hands = asyncio.Semaphore(num_hands)
        self.cores_used: dict[str, float] = {}
        self.leftovers: dict[str, Place | None] = {}
        self._breaker, self._gate = breaker, DiskGate()
        self._status = HostStatus(num_cpus=0, memory_bytes=0)

    async def look(self) -> None:
        """Measure its size and disk; a failure is kept in ``error``."""
        try:
            self._status = await self.driver.status()
            self.error = None
        except SandboxError as error:
            if self.error is None or self._breaker.state is Circuit.CLOSED:  # a refusal says less than what led to it
                self.error = error
        else:
            self._gate.update(self._status.free_disk_bytes, self._status.disk_bytes)

    @property
    def condition(self) -> str:
        """See `HostInfo`."""
        if self.drained:
            return "drained"
        if self._breaker.state is not Circuit.CLOSED:
            return "quarantined"
        return "full" if self._gate.full else "open"

    @property
    def silent_s(self) -> float:
        """For how long it has answered nothing."""
        return self._breaker.silent_s

    def info(self) -> HostInfo:
        """Return it as its users see it, without what is promised on it."""
        status = self._status
        return HostInfo(
            name=self.name,
            endpoint=self.driver.endpoint,
            condition=self.condition,
            num_cpus=status.num_cpus,
            memory_bytes=status.memory_bytes,
            load=sum(self.cores_used.values()),
            free_disk_bytes=status.free_disk_bytes,
        )

    def forget(self, container: str) -> None:
        """A leftover is gone: give its room back."""
        place = self.leftovers.pop(container, None)
        if place is not None:
            place.release()
