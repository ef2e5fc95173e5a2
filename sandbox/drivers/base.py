"""The driver seam: one host that runs containers. A driver keeps no state of its own and makes no policy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from rollcage.sandbox.guest.base import Guest
from rollcage.sandbox.types import SandboxSpec

LABEL_MANAGER = "rollcage.manager"
"""On every container, network, volume and image: the id of the store that it belongs to."""
LABEL_SANDBOX = "rollcage.sandbox"
LABEL_GENERATION = "rollcage.generation"
LABEL_RECORD = "rollcage.record"
"""JSON of what the store needs to be rebuilt: key, owner, spec, creation time and lease."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container to be: one life of one sandbox.

    Attributes:
        name: unique; creating it again while it exists is no error.
        image: instead of the specification's: a snapshot's; "" where it is the specification's own.
        spec: see `SandboxSpec`.
        labels: the `LABEL_...` ones.
    """

    name: str
    spec: SandboxSpec
    image: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observed:
    """A container as its host sees it.

    Attributes:
        name: as in `Container`.
        status: "created", "running", "paused", "exited" or "dead".
        labels: all of them.
        exit_code: of the main process, None while it runs.
        oom_killed: whether the kernel killed the main process for memory.
        started_at: seconds since the epoch; 0 before its start.
        ports: container port -> port on the host's loopback.
    """

    name: str
    status: str
    labels: Mapping[str, str]
    exit_code: int | None = None
    oom_killed: bool = False
    started_at: float = 0.0
    ports: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostStatus:
    """A host's size; None where it cannot tell."""

    num_cpus: int
    memory_bytes: int
    free_disk_bytes: int | None = None
    disk_bytes: int | None = None
    """Size of that disk."""


@dataclass(frozen=True, slots=True)
class HostEvent:
    """A container changed: ``kind`` is "start", "die", "oom", "pause", "unpause" or "destroy"."""

    container: str
    kind: str
    exit_code: int | None = None


class Driver(Protocol):
    """One host. Every call ends by ``call_timeout_s`` of the driver, and none blocks the event loop.

    Any call may raise DaemonUnreachable, DaemonForbidden, or HostUnavailable (too slow, or an internal error there).
    """

    endpoint: str

    async def create(self, container: Container) -> None:
        """Create and start a container; idempotent by name: what an earlier try left is used or finished.

        Raises:
            BadSpec, ImageMissing: it can never work here.
            StartFailed: its main process could not be started. It may exist: `remove` it.
        """
        ...

    async def connect(self, name: str, spec: SandboxSpec) -> Guest:
        """Return a new connection to the inside: the agent, or, where there is no Python, plain execs.

        Raises:
            SandboxUnavailable: it does not run.
        """
        ...

    async def inspect(self, name: str) -> Observed | None:
        """Return one container, or None where there is none."""
        ...

    async def list_containers(self, manager: str) -> list[Observed]:
        """Return all containers with that `LABEL_MANAGER`, the ended ones too."""
        ...

    def events(self, manager: str) -> AsyncIterator[HostEvent]:
        """Yield what happens to those containers, until the connection ends (then it raises HostUnavailable)."""
        ...

    async def logs(self, name: str, *, num_lines: int) -> str:
        """Return the last lines of the main process, "" where there is no container."""
        ...

    async def kill(self, name: str) -> None:
        """End the main process at once; nothing where it does not run."""
        ...

    async def remove(self, name: str) -> None:
        """Kill and remove a container with its anonymous volumes and networks; nothing where there is none."""
        ...

    async def pause(self, name: str) -> None:
        """Freeze its processes; nothing where they are frozen."""
        ...

    async def unpause(self, name: str) -> None:
        """Undo `pause`; nothing where they run."""
        ...

    async def commit(self, name: str, image: str, labels: Mapping[str, str]) -> None:
        """Save its file system as ``image`` ("repository:tag")."""
        ...

    async def list_images(self, manager: str) -> list[str]:
        """Return the snapshot images with that `LABEL_MANAGER`, oldest first."""
        ...

    async def remove_image(self, image: str) -> None:
        """Remove an image; nothing where there is none, or where a container still needs it."""
        ...

    async def written_bytes(self, manager: str) -> Mapping[str, int]:
        """Return how much each running container has written to its own file system."""
        ...

    async def status(self) -> HostStatus:
        """Return the host's size."""
        ...

    async def close(self) -> None:
        """Let go of all connections; idempotent. Containers live on."""
        ...
