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
        cpu_overcommit: CPU shares may add up to so many times the host's cores. A share is a cap, not a need: agents
            wait for their model most of the time, so by default memory and ``max_sandboxes`` decide how many fit (128
            sandboxes of one CPU on two cores). Commands that all compute at once then share the cores evenly; for
            such work, and where timings count, set it near 1, which promises no core twice.
        memory_share: of the host's memory that may be promised; the rest is for the host itself. Memory is never
            promised twice.
        load_weight: from 0 to 1, how much the measured load counts against the reservations where hosts are compared.
    """

    max_sandboxes: int = 128
    max_starts: int = 8
    cpu_overcommit: float = 64.0
    memory_share: float = 0.9
    load_weight: float = 0.5

    def __post_init__(self) -> None:
        """Refuse limits that let nothing in, or let in what the host has not; raises BadSpec."""
        wrong = [
            name
            for name, fine in (
                ("max_sandboxes", self.max_sandboxes >= 1),
                ("max_starts", self.max_starts >= 1),
                ("cpu_overcommit", self.cpu_overcommit >= 1),
                ("memory_share", 0 < self.memory_share <= 1),
                ("load_weight", 0 <= self.load_weight <= 1),
            )
            if not fine
        ]
        if wrong:
            values = ", ".join(f"{name}={getattr(self, name)!r}" for name in wrong)
            raise BadSpec(
                f"Host limits out of range: {values}. Counts and cpu_overcommit are at least 1, shares from 0 to 1."
            )


DEFAULT_LIMITS = HostLimits()
HOW_TO_GET_ROOM = (
    " Delete sandboxes, ask for less in their specifications, or let hosts promise more: "
    "Settings(limits=HostLimits(...)) of the manager."
)


def choose_host(
    spec: SandboxSpec,
    hosts: Iterable[HostInfo],
    limits: HostLimits = DEFAULT_LIMITS,
    *,
    num_starting: Mapping[str, int] | None = None,
    kept: Collection[str] = (),
) -> str:
    """Return the name of the host that takes ``spec``: the least loaded.

    The least loaded is the one with the smallest blend of reserved share (of the scarcest of CPU, memory and places,
    this sandbox counted) and measured CPU load; ties go to the fewer sandboxes, then to the smaller name.

    Args:
        spec: what needs a place.
        hosts: all that may take it, with what is reserved on each.
        limits: what each of them may promise.
        num_starting: by host, sandboxes that are being started there.
        kept: names of the hosts that are kept for others, who have waited longer.

    Raises:
        BadSpec: it would fit on none of the hosts even if they were empty and open.
        Overloaded: there is no room now; waiting may help.
        DiskPressure: the hosts that are up have too little free disk.
        HostUnavailable: every host is drained, quarantined or has not answered yet.
    """
    hosts = list(hosts)
    if not hosts:
        raise HostUnavailable("No host: the manager was given none that may take this sandbox.")
    never = {host.name: obstacle(spec, host, limits) for host in hosts}
    able = [host for host in hosts if not never[host.name]]
    if not able:
        raise BadSpec("Fits on no host, not even an empty one: " + _listed(never))
    ready = [host for host in able if host.condition == "open" and host.num_cpus]
    if not ready:
        conditions = {
            host.name: "has not answered yet" if host.condition == "open" else host.condition for host in able
        }
        if "full" in conditions.values():
            raise DiskPressure("Too little free disk for a new sandbox: " + _listed(conditions))
        raise HostUnavailable("No host takes new sandboxes: " + _listed(conditions))
    starting = num_starting or {}
    short = {
        host.name: "is kept for one that has waited longer"
        if host.name in kept
        else _shortage(spec, host, limits, starting.get(host.name, 0))
        for host in ready
    }
    free = [host for host in ready if not short[host.name]]
    if not free:
        raise Overloaded("No host has room: " + _listed(short) + HOW_TO_GET_ROOM)
    return min(free, key=lambda host: (_load(spec, host, limits), host.num_sandboxes, host.name)).name


def obstacle(spec: SandboxSpec, host: HostInfo, limits: HostLimits) -> str:
    """Return why ``spec`` could not even have the whole host, "" where it could or where its size is not known yet."""
    if spec.cpus <= 0 or spec.memory_bytes <= 0:
        return f"asks for {spec.cpus:g} CPUs and {spec.memory_bytes} bytes of memory; both must be more than 0"
    if not host.num_cpus:
        return ""
    if spec.cpus > host.num_cpus:  # one sandbox's share is also its cap, so overcommitting does not help
        return f"asks for {spec.cpus:g} CPUs, and it has {host.num_cpus}"
    if spec.memory_bytes > _memory(host, limits):
        return f"asks for {_mib(spec.memory_bytes)} of memory, and it may promise {_mib(_memory(host, limits))}"
    return ""


def _shortage(spec: SandboxSpec, host: HostInfo, limits: HostLimits, num_starting: int) -> str:
    cpus = host.num_cpus * limits.cpu_overcommit
    if host.num_sandboxes >= limits.max_sandboxes:
        return f"{host.num_sandboxes} sandboxes of {limits.max_sandboxes} (max_sandboxes)"
    if host.reserved_memory_bytes + spec.memory_bytes > _memory(host, limits):
        memory = f"{_mib(host.reserved_memory_bytes)} of {_mib(_memory(host, limits))} of memory"
        return f"{memory} are promised (memory_share {limits.memory_share:g}), it asks for {_mib(spec.memory_bytes)}"
    if host.reserved_cpus + spec.cpus > cpus + 1e-9:
        promised = f"{host.reserved_cpus:g} of {cpus:g} CPUs are promised"
        return (
            f"{promised} ({host.num_cpus} cores, cpu_overcommit {limits.cpu_overcommit:g}), it asks for {spec.cpus:g}"
        )
    if num_starting >= limits.max_starts:
        return f"{num_starting} sandboxes are being started (max_starts)"
    return ""


def _load(spec: SandboxSpec, host: HostInfo, limits: HostLimits) -> float:
    reserved = max(
        (host.reserved_cpus + spec.cpus) / (host.num_cpus * limits.cpu_overcommit),
        (host.reserved_memory_bytes + spec.memory_bytes) / _memory(host, limits),
        (host.num_sandboxes + 1) / limits.max_sandboxes,
    )
    return (1 - limits.load_weight) * reserved + limits.load_weight * host.load / host.num_cpus


def _memory(host: HostInfo, limits: HostLimits) -> int:
    return int(host.memory_bytes * limits.memory_share)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:.0f} MiB"


def _listed(reasons: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) + "."
