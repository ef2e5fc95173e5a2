"""From a specification to Docker's container configuration: confined, and nothing left unbounded."""

from __future__ import annotations

import io
import posixpath
import re
import tarfile
from collections.abc import Mapping
from typing import Any

from rollcage.sandbox.drivers.base import LABEL_MANAGER, Container
from rollcage.sandbox.errors import BadSpec
from rollcage.sandbox.types import MIB, SandboxSpec

WAIT = ("sleep", "2147483647")
"""The main process of a sandbox that has none of its own (busybox knows no "infinity")."""
LABEL_RECIPE = "rollcage.recipe"
"""On every image that `rollcage.sandbox.images` makes: what it was made by."""
LABEL_PART_OF = "rollcage.part-of"
"""On a sandbox's container and all that stands beside it: the name of that container."""
LABEL_GATED = "rollcage.gated"
"""On a container that has a gate; "" where it has none (an image may bring the label of an earlier life)."""
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+")
_USER = re.compile(r"(\d+)(?::(\d+))?")
_SHARED = ("/", "/tmp")
"""Working directories that belong to everybody."""


def check_spec(container: Container) -> None:
    """Raise BadSpec for what Docker would misunderstand, or fail at too late."""
    spec = container.spec
    if not _NAME.fullmatch(container.name):
        raise BadSpec(f"container name {container.name!r} must be letters, digits, '_', '.' and '-'.")
    user_ids(spec)
    if not spec.workdir.startswith("/") or ".." in spec.workdir.split("/"):
        raise BadSpec(f"workdir {spec.workdir!r} must be an absolute path without '..'.")
    if spec.memory_bytes < 6 * MIB:
        raise BadSpec(f"memory_bytes {spec.memory_bytes} is below Docker's least, {6 * MIB} (6 MiB).")
    if not spec.cpus > 0:
        raise BadSpec(f"cpus {spec.cpus:g} must be above 0.")
    if spec.num_pids < 8:
        raise BadSpec(f"num_pids {spec.num_pids} is too few: a sandbox itself needs some; use 8 or more.")
    if spec.disk_bytes < 0:
        raise BadSpec(f"disk_bytes {spec.disk_bytes} must not be negative.")
    for port in spec.ports:
        if not 0 < port < 65536:
            raise BadSpec(f"port {port} must be between 1 and 65535.")
    for name in spec.env:
        if not name or "=" in name or "\0" in name + spec.env[name]:
            raise BadSpec(f"environment variable {name!r} has a name or value that no process can be given.")


def user_ids(spec: SandboxSpec) -> tuple[int, int]:
    """Return (uid, gid) of a specification's user."""
    match = _USER.fullmatch(spec.user)
    if match is None:
        raise BadSpec(f"user {spec.user!r} must be numbers, 'uid:gid'.")
    uid = int(match[1])
    return uid, int(match[2]) if match[2] is not None else uid


def is_gated(spec: SandboxSpec) -> bool:
    """Return whether anything leads in or out: then a gate stands beside the container."""
    return bool(spec.network or spec.ports)


def container_config(container: Container) -> dict[str, Any]:
    """Return the body of Docker's create call; the network is added by who makes it."""
    spec = container.spec
    host = {
        **confinement(num_pids=spec.num_pids, memory_bytes=spec.memory_bytes),
        "NanoCpus": round(spec.cpus * 1e9),
        "NetworkMode": "none",
        "ReadonlyRootfs": spec.read_only,
        "Tmpfs": _tmpfs(spec),
    }
    return {
        "Image": container.image or spec.image,
        "Entrypoint": list(spec.command or WAIT),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in spec.env.items()],
        "WorkingDir": spec.workdir,
        "User": ":".join(map(str, user_ids(spec))),
        "Labels": {**container.labels, LABEL_PART_OF: container.name, LABEL_GATED: "yes" if is_gated(spec) else ""},
        "Healthcheck": {"Test": ["NONE"]},  # an image's own would fork at the sandbox's cost; the manager probes
        "HostConfig": host,
    }


def confinement(*, num_pids: int, memory_bytes: int) -> dict[str, Any]:
    """Return the host configuration that every container of ours has."""
    return {
        "Init": True,  # reaps the orphans of killed process groups
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "PidsLimit": num_pids,
        "Memory": memory_bytes,
        "MemorySwap": memory_bytes,  # the sum of both: so no swap
        "IpcMode": "private",
        "ShmSize": min(64 * MIB, memory_bytes // 8),  # with what is below, never all of the memory
        "OomScoreAdj": 100,  # when the host runs out, sandboxes go before the manager; the agent's commands have 300
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
    }


def _tmpfs(spec: SandboxSpec) -> dict[str, str]:
    if not spec.read_only:
        return {}
    uid, gid = user_ids(spec)
    mounts = {"/tmp": _memory(spec, 4) + ",mode=1777"}
    if spec.workdir not in _SHARED:
        mounts[spec.workdir] = _memory(spec, 2) + f",uid={uid},gid={gid},mode=0755"
    return mounts


def _memory(spec: SandboxSpec, share: int) -> str:
    """Return the options of a file system in memory. It cannot be reclaimed: full ones must leave a rest."""
    size = spec.memory_bytes // share
    return f"rw,exec,nosuid,nodev,size={min(size, spec.disk_bytes or size)}"


def workdir_archive(spec: SandboxSpec) -> bytes:
    """Return a tar that gives the working directory to the user, to be unpacked in its parent; b"": no need."""
    if spec.read_only or spec.workdir in _SHARED:
        return b""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        member = tarfile.TarInfo(posixpath.basename(posixpath.normpath(spec.workdir)))
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        member.uid, member.gid = user_ids(spec)
        archive.addfile(member)
    return file.getvalue()


def of_manager(manager: str) -> Mapping[str, list[str]]:
    """Return the filter for everything that belongs to one store."""
    return {"label": [f"{LABEL_MANAGER}={manager}"]}
