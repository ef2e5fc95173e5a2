"""Who may create a sandbox now: one fair queue in front of all hosts, and the ledger of what is promised on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rollcage.sandbox.placement import HostLimits
from rollcage.sandbox.types import HostInfo, SandboxSpec


class Place:
    """A promise of room on one host: its share of CPU and memory, and, until `started`, one of its starts.

    Attributes:
        host: its name.
        spec: what the room is for.
    """

    host: str
    spec: SandboxSpec

    def started(self) -> None:
        """Give back the start: the sandbox is ready, or its start has failed. Idempotent."""
        raise NotImplementedError

    def release(self) -> None:
        """Give back all of it: the container is gone. Idempotent."""
        raise NotImplementedError


class Admission:
    """The queue of creations, and what is reserved on each host.

    Owners take turns, each one's creations in the order in which they came. What does not fit now lets others pass,
    but only so many: then the hosts that it could use take nobody else until it has had its turn. Everything is
    decided in the event loop's thread without a wait between the look and the promise, so nothing is ever
    promised twice.

    Args:
        hosts: the hosts as they are now: name, condition, size, load. Their reservations are this class's business:
            what `hosts` says of them is not read.
        limits: what each host may promise.
        max_passes: so many later creations of other owners may pass one that does not fit.
    """

    def __init__(
        self, hosts: Callable[[], Sequence[HostInfo]], limits: HostLimits = HostLimits(), *, max_passes: int = 32
    ) -> None:
        raise NotImplementedError

    async def admit(
        self,
        spec: SandboxSpec,
        *,
        deadline: float,
        owner: str = "",
        prefer: Collection[str] = (),
        only: Collection[str] = (),
    ) -> Place:
        """Wait for this creation's turn and for room, and return the place; `Place.release` it whatever happens.

        A creation that is cancelled or runs into its deadline leaves no trace.

        Args:
            spec: what needs a place.
            deadline: in the event loop's time.
            owner: whose turn it is.
            prefer: hosts that hold its image.
            only: hosts that alone may take it (a snapshot's, which lies nowhere else); empty: all.

        Raises:
            BadSpec: it can never fit. At once.
            DiskPressure: the hosts that are up are full. At once, or when that happens while it waits.
            Overloaded: no room by the deadline.
            HostUnavailable: by the deadline no host was open; or the queue was closed.
        """
        raise NotImplementedError

    async def restart(self, place: Place, *, deadline: float) -> None:
        """Wait for a start on the host of a place that is held already (a new life); then `Place.started` it.

        New lives go before new sandboxes.

        Raises:
            Overloaded: no start was free by the deadline.
            HostUnavailable: the queue was closed.
        """
        raise NotImplementedError

    def adopt(self, host: str, spec: SandboxSpec) -> Place:
        """Return the place of a sandbox that exists already; counts even where it is more than the limits allow."""
        raise NotImplementedError

    def reserved(self, host: HostInfo) -> HostInfo:
        """Return ``host`` with its num_sandboxes, reserved_cpus and reserved_memory_bytes filled in."""
        raise NotImplementedError

    def wake(self) -> None:
        """Look again: a host has opened, closed, appeared, gone or changed its size. Releases do this by themselves."""
        raise NotImplementedError

    @property
    def num_waiting(self) -> int:
        """Creations in the queue."""
        raise NotImplementedError

    def close(self) -> None:
        """Let nobody in any more; those that wait get HostUnavailable. Idempotent."""
        raise NotImplementedError
