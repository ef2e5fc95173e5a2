"""Which host takes a sandbox: pure; from what is promised to others, what is measured, and what a host may promise."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rollcage.sandbox.errors import BadSpec, DiskPressure, HostUnavailable, Overloaded
from rollcage.sandbox.types import MIB, HostInfo, SandboxSpec


@dataclass(frozen=True, slots=True)
class HostLimits:
    """How much of one host may be promised.

    Attributes:
        max_sandboxes: on the host at once.
        max_starts: sandboxes that are being started on the host at once.
        cpu_overcommit: CPU shares may add up to so many times the host's cores: agents wait for their model most of
            the time, and a share is no more than a weight and a cap. 1 promises no core twice.
        memory_share: of the host's memory that may be promised; the rest is for the host itself. Memory is never
            promised twice.
        load_weight: from 0 to 1, how much the measured load counts against the reservations where hosts are compared.
    """

    max_sandboxes: int = 128
    max_starts: int = 8
    cpu_overcommit: float = 8.0
    memory_share: float = 0.9
    load_weight: float = 0.5

    def __post_init__(self) -> None:
        """Refuse limits that let nothing in, or let in what the host has not; raises BadSpec."""
        raise NotImplementedError


def choose_host(
    spec: SandboxSpec,
    hosts: Iterable[HostInfo],
    limits: HostLimits = HostLimits(),
    *,
    num_starting: Mapping[str, int] | None = None,
    prefer: Collection[str] = (),
) -> str:
    """Return the name of the host that takes ``spec``: one that holds its image, then the least loaded.

    The least loaded is the one with the smallest blend of reserved share (of the scarcest of CPU, memory and places,
    this sandbox counted) and measured CPU load; ties go to the fewer sandboxes, then to the smaller name.

    Args:
        spec: what needs a place.
        hosts: all that may take it, with what is reserved on each.
        limits: what each of them may promise.
        num_starting: by host, sandboxes that are being started there.
        prefer: names of the hosts that hold its image.

    Raises:
        BadSpec: it would fit on none of the hosts even if they were empty and open.
        Overloaded: there is no room now; waiting may help.
        DiskPressure: the hosts that are up have too little free disk.
        HostUnavailable: every host is drained, quarantined or has not answered yet.
    """
    raise NotImplementedError
