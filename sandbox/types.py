"""What the sandbox manager is asked for, and what it answers: plain data, JSON-able."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

MIB = 1024 * 1024


class State(StrEnum):
    """Where a sandbox is in its life."""

    PENDING = "PENDING"
    """Waits for a place."""
    STARTING = "STARTING"
    READY = "READY"
    UNHEALTHY = "UNHEALTHY"
    """Its probes fail; it may be restarted."""
    RECOVERING = "RECOVERING"
    """A new life is being started."""
    STOPPED = "STOPPED"
    """Paused: its processes are frozen."""
    FAILED = "FAILED"
    DELETED = "DELETED"


class RestartPolicy(StrEnum):
    """What happens when a sandbox dies or stops answering."""

    FAIL = "fail"
    """It is FAILED; its container is removed."""
    RESTART = "restart"
    """A new life from the image: what was written is lost."""
    RESTORE = "restore"
    """A new life from its last snapshot (from the image where there is none)."""


@dataclass(frozen=True, slots=True)
class Probe:
    """How health is watched.

    Attributes:
        interval_s: from one probe's start to the next's, jittered by a tenth. What hangs is found out after
            ``num_failures * 1.1 * interval_s + timeout_s`` at the latest: by default 9.6 s. A main process that ends,
            and a connection that is lost, are noticed at once.
        timeout_s: longest wait for an answer.
        num_failures: so many failures ...
        num_recent: ... among so many recent probes make it UNHEALTHY.
        command: shell command that must exit with 0; "" only asks the agent (and runs ``true``).
    """

    interval_s: float = 3.0
    timeout_s: float = 3.0
    num_failures: int = 2
    num_recent: int = 3
    command: str = ""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What one sandbox is.

    Attributes:
        image: Docker image on the host (or one that its registry has).
        command: main process; empty: one that only waits.
        ready_command: shell command that must exit with 0 before the sandbox counts as ready; "": at once.
        env: environment variables of everything that runs inside.
        workdir: where commands start; made, and owned by ``user``.
        user: "uid:gid"; not root by default.
        cpus: CPU share, in cores.
        memory_bytes: hard limit, no swap.
        num_pids: most processes and threads.
        disk_bytes: most bytes written; 0 is no limit. Watched: the offender is stopped within 10 s.
        read_only: the root file system is read-only; ``workdir`` and /tmp are in memory, of ``disk_bytes`` at most.
        network: "host:port" pairs that it may reach; empty: no network at all.
        ports: container ports that are published on the host's loopback.
        ttl_s: it is deleted so many seconds after its creation or last `renew`; 0: never.
        start_timeout_s: longest wait from the start of its container until it is ready.
        restart: what happens when it dies.
        max_restarts: after so many restarts it is FAILED.
        probe: how its health is watched.
        labels: the user's own.
    """

    image: str = "rollcage-base"
    command: tuple[str, ...] = ()
    ready_command: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "/work"
    user: str = "1000:1000"
    cpus: float = 1.0
    memory_bytes: int = 512 * MIB
    num_pids: int = 512
    disk_bytes: int = 0
    read_only: bool = False
    network: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()
    ttl_s: float = 3600.0
    start_timeout_s: float = 30.0
    restart: RestartPolicy = RestartPolicy.FAIL
    max_restarts: int = 3
    probe: Probe = Probe()
    labels: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SandboxSpec:
        """Undo `to_json`; unknown keys raise TypeError."""
        fields = dict(data)
        fields["probe"] = Probe(**fields.get("probe", {}))
        fields["restart"] = RestartPolicy(fields.get("restart", "fail"))
        for name in ("command", "network", "ports"):
            fields[name] = tuple(fields.get(name, ()))
        return cls(**fields)

    @property
    def pool_hash(self) -> str:
        """Equal for specifications whose containers are interchangeable."""
        same = {**asdict(self), "ttl_s": 0, "labels": {}, "restart": "", "max_restarts": 0}
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ExecRequest:
    """One command to run.

    Attributes:
        command: a string for the shell (`sh -c`), or the arguments of a program.
        timeout_s: then its whole process group is killed.
        env, cwd: added to, in place of, the sandbox's.
        stdin: given to it, then closed.
        max_output_bytes: of stdout and of stderr, each; the first and last halves are kept.
    """

    command: str | tuple[str, ...]
    timeout_s: float = 60.0
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    stdin: bytes = b""
    max_output_bytes: int = MIB


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What a command did.

    Attributes:
        exit_code: None where a signal ended it.
        signal: the signal that ended it, else None.
        timed_out: it was killed at its deadline; the output until then is here.
        oom_killed: the kernel killed a process of the sandbox for memory while it ran.
        truncated: output is missing in the middle: more than ``max_output_bytes`` came.
        num_stdout_bytes, num_stderr_bytes: written in all.
        stdout, stderr: the exact bytes that were kept.
        duration_s: from start to exit, as seen inside.
        generation: the life of the sandbox in which it ran.
    """

    exit_code: int | None
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    truncated: bool = False
    num_stdout_bytes: int = 0
    num_stderr_bytes: int = 0
    stdout: bytes = b""
    stderr: bytes = b""
    duration_s: float = 0.0
    generation: int = 1

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def stdout_text(self) -> str:
        """The output as text; bytes that are no UTF-8 are replaced."""
        return self.stdout.decode(errors="replace")

    @property
    def stderr_text(self) -> str:
        """The error output as text; bytes that are no UTF-8 are replaced."""
        return self.stderr.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of a running command's output.

    Attributes:
        source: "stdout" or "stderr".
        data: exact bytes; a character may be cut in two.
    """

    source: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a sandbox says of itself when it is probed, from its control group.

    Attributes:
        num_oom_kills: processes killed for memory since its start.
        memory_bytes: in use.
        num_pids: processes and threads.
        cpu_s: CPU seconds used.
    """

    num_oom_kills: int = 0
    memory_bytes: int = 0
    num_pids: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a sandbox.

    Attributes:
        number: grows by at least 1 from event to event of one store.
        time: seconds since the epoch.
        sandbox_id: whose; "" for a host's.
        kind: such as "created", "ready", "died", "restarted", "deleted".
        data: JSON-able details.
    """

    number: int
    time: float
    sandbox_id: str
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The saved file system of a sandbox.

    Attributes:
        id: also the image's tag.
        sandbox_id: of whom.
        image: image name on ``host``.
        host: where it lies.
        time: seconds since the epoch.
    """

    id: str
    sandbox_id: str
    image: str
    host: str
    time: float


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """What the manager knows of a sandbox.

    Attributes:
        id: unique and never used again.
        key: the caller's name for it: creating it again returns this one.
        owner: whose turn a creation counts as.
        spec: as created.
        host: name of the Docker host, "" while it waits for one.
        state: see `State`.
        generation: life, from 1; each restart or restore adds 1.
        created_at: seconds since the epoch, as all times here.
        started_at: of this life.
        expires_at: end of its lease; 0: never.
        ports: container port -> port on the host's loopback.
        num_restarts: so far.
        message: why it is in this state, where that needs a word.
        exit_code, oom_killed: of its main process, where that has ended.
    """

    id: str
    key: str
    owner: str
    spec: SandboxSpec
    host: str
    state: State
    generation: int
    created_at: float
    started_at: float = 0.0
    expires_at: float = 0.0
    ports: Mapping[int, int] = field(default_factory=dict)
    num_restarts: int = 0
    message: str = ""
    exit_code: int | None = None
    oom_killed: bool = False


@dataclass(frozen=True, slots=True)
class HostInfo:
    """A Docker host as the manager sees it.

    Attributes:
        name: the user's.
        endpoint: such as "unix:///var/run/docker.sock".
        condition: "open", "drained" (no new sandboxes), "quarantined" (its breaker is open) or "full" (disk pressure).
        num_sandboxes: of this manager.
        reserved_cpus, reserved_memory_bytes: promised to them.
        num_cpus, memory_bytes: what it has.
        load: cores that its sandboxes use, as their probes measure it.
        free_disk_bytes: None where unknown.
    """

    name: str
    endpoint: str
    condition: str
    num_sandboxes: int = 0
    reserved_cpus: float = 0.0
    reserved_memory_bytes: int = 0
    num_cpus: int = 0
    memory_bytes: int = 0
    load: float = 0.0
    free_disk_bytes: int | None = None
