"""What is missing on this machine for sandboxes, in plain words, and how to mend it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollcage.sandbox.drivers.base import LABEL_MANAGER, LABEL_RECORD
from rollcage.sandbox.errors import DaemonForbidden, DaemonUnreachable, SandboxError
from rollcage.sandbox.types import MIB, SandboxSpec

BASE_IMAGE = "rollcage-base"
MIN_FREE_BYTES = 5 * 1024 * MIB
PROBE_BYTES, PROBE_PIDS = 64 * MIB, 40
"""The limits that are tried; no host has them by chance."""
ANSWER_S = 10.0
"""The daemon's time for one answer."""
OVERDUE_S = 300.0
"""A container that is there so long after the end of its lease has no manager."""
RESTART = "restart it (sudo systemctl restart docker) and look at its log (journalctl -u docker)"
READ_LIMITS = (
    "cat /sys/fs/cgroup/memory.max 2>/dev/null || cat /sys/fs/cgroup/memory/memory.limit_in_bytes;"
    " cat /sys/fs/cgroup/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids/pids.max"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Attributes:
        check: its name.
        ok: whether all is well.
        text: what is so.
        mend: what to do where it is not well.
    """

    check: str
    ok: bool
    text: str
    mend: str = ""


async def examine(endpoint: str, folder: Path) -> AsyncIterator[Finding]:
    """Yield what each check finds; those that need what an earlier one missed are left out.

    Args:
        endpoint: of the Docker daemon.
        folder: the manager's state.
    """
    finding = client_library()
    yield finding
    yield service_library()
    if not finding.ok:
        return
    from rollcage.sandbox.drivers.docker_api import Engine

    engine = Engine(endpoint, call_timeout_s=ANSWER_S)
    try:
        try:
            async with engine.call("describe itself") as docker:
                about = dict(await docker.system.info())
        except DaemonForbidden as error:
            yield Finding("permission", False, *_halves(error))
            return
        except DaemonUnreachable as error:
            yield Finding("daemon", False, *_halves(error))
            return
        except SandboxError as error:
            yield Finding("daemon", False, str(error), RESTART)
            return
        yield Finding("daemon", True, f"Docker {about.get('ServerVersion')} answers at {endpoint}")
        yield seccomp(about)
        yield limits(about)
        yield disk(about, endpoint)
        try:
            async with engine.call("list images and containers") as docker:
                names = [tag for image in await docker.images.list() for tag in image.get("RepoTags") or []]
                listed = await docker.containers.list(all=True, filters={"label": [LABEL_MANAGER]})
        except SandboxError as error:
            yield Finding("daemon", False, str(error), RESTART)
            return
        finding = base_image(names)
        yield finding
        yield leftovers([container._container for container in listed], *_manager_of(folder), time.time())
    finally:
        await engine.close()
    if finding.ok:
        yield await trial(endpoint)
    yield state_folder(folder)


def client_library() -> Finding:
    """Check the Docker client."""
    if find_spec("aiodocker") is None:
        return Finding("client", False, "the Docker client is not installed", "pip install 'rollcage[sandbox]'")
    return Finding("client", True, "the Docker client is installed")


def service_library() -> Finding:
    """Check what the service needs."""
    missing = [name for name in ("fastapi", "uvicorn") if find_spec(name) is None]
    if missing:
        told = f"{' and '.join(missing)} not installed: the service cannot be started"
        return Finding("service", False, told, "pip install 'rollcage[sandbox]'")
    return Finding("service", True, "what the service needs is installed")


def seccomp(about: dict[str, Any]) -> Finding:
    """Check, in what the daemon tells about itself, that it filters system calls."""
    if not any("name=seccomp" in option for option in about.get("SecurityOptions") or []):
        mend = "use a kernel and a Docker that are built with seccomp (CONFIG_SECCOMP_FILTER), or trusted code only"
        return Finding("seccomp", False, "the daemon does not filter system calls (no seccomp)", mend)
    return Finding("seccomp", True, "system calls are filtered (seccomp)")


def limits(about: dict[str, Any]) -> Finding:
    """Check, in what the daemon tells about itself, that it can hold containers to limits."""
    names = {"MemoryLimit": "memory", "SwapLimit": "swap", "PidsLimit": "processes", "CpuCfsQuota": "CPU"}
    missing = [name for key, name in names.items() if not about.get(key)]
    if missing:
        mend = "enable the control groups (kernel command line: cgroup_enable=memory swapaccount=1) and restart"
        return Finding("limits", False, f"the kernel does not limit {', '.join(missing)}", mend)
    version = about.get("CgroupVersion") or "1"
    return Finding("limits", True, f"the kernel limits {', '.join(names.values())} (cgroup v{version})")


def disk(about: dict[str, Any], endpoint: str) -> Finding:
    """Check the free disk under Docker's folder, where that is on this machine."""
    root = Path(str(about.get("DockerRootDir", "")))
    if not endpoint.startswith("unix://") or not os.path.isdir(root):
        return Finding("disk", True, "Docker's disk is not on this machine, or not for this user's eyes: not looked at")
    usage = shutil.disk_usage(root)
    free_gib = usage.free / (1024 * MIB)
    if usage.free < MIN_FREE_BYTES:
        mend = "docker system prune, rollcage sandbox images prune, or move Docker's data-root to a larger disk"
        return Finding("disk", False, f"{root} has only {free_gib:.1f} GiB free", mend)
    return Finding("disk", True, f"{root} has {free_gib:.0f} GiB free")


def base_image(names: list[str]) -> Finding:
    """Check that the default image is there."""
    if f"{BASE_IMAGE}:latest" not in names:
        return Finding("image", False, f"there is no image {BASE_IMAGE}", "rollcage sandbox images build base")
    return Finding("image", True, f"the image {BASE_IMAGE} is there")


def leftovers(containers: list[dict[str, Any]], manager: str, is_managed: bool, now: float) -> Finding:
    """Check for containers whose manager is gone, which should have removed them.

    Args:
        containers: those of sandboxes, as Docker lists them.
        manager: the id of this folder's store.
        is_managed: a manager has the folder now.
        now: seconds since the epoch.
    """
    mine: list[str] = []
    others: list[str] = []
    for container in containers:
        labels = container.get("Labels") or {}
        try:
            expires_at = float(json.loads(labels[LABEL_RECORD])["expires_at"])
        except (ValueError, KeyError, TypeError):
            continue
        name = str((container.get("Names") or ["?"])[0]).lstrip("/")
        if 0 < expires_at < now - OVERDUE_S:
            (mine if labels.get(LABEL_MANAGER) == manager else others).append(name)
    if mine and not is_managed:
        told = f"{len(mine)} containers of this folder have outlived their lease, and no manager runs"
        return Finding("leftovers", False, told, "rollcage sandbox reap")
    if others:
        told = f"{len(others)} containers of other managers have outlived the lease that they were made with"
        mend = f"unless such a manager runs (it may have renewed them): docker rm -f -v {' '.join(others[:5])}"
        return Finding("leftovers", False, told, mend)
    return Finding("leftovers", True, f"{len(containers)} containers of sandboxes, none left behind")


def _manager_of(folder: Path) -> tuple[str, bool]:
    """Return the id of a folder's store, "" where there is none, and whether a manager has it now."""
    try:
        manager = (folder / "id").read_text(encoding="utf-8").strip()
        with (folder / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return manager, True
    except OSError:
        return "", False
    return manager, False


async def trial(endpoint: str) -> Finding:
    """Start a sandbox with small limits, and read them back inside."""
    try:
        async with _trial_sandbox(endpoint) as run:
            found = (await run(READ_LIMITS)).split()
    except SandboxError as error:
        return Finding("trial", False, f"a sandbox could not be started: {error}", "see the other findings")
    if found != [str(PROBE_BYTES), str(PROBE_PIDS)]:
        wanted = f"{PROBE_BYTES} bytes and {PROBE_PIDS} processes"
        mend = (
            "do not run untrusted code here: check the daemon's cgroup driver and that it may write to /sys/fs/cgroup"
        )
        return Finding(
            "trial", False, f"limits are not honoured: {wanted} were asked for, {' '.join(found)} found", mend
        )
    return Finding("trial", True, "a sandbox was started, held to its limits, and removed")


@asynccontextmanager
async def _trial_sandbox(endpoint: str) -> AsyncIterator[Callable[[str], Any]]:
    from rollcage.sandbox.drivers.docker import DockerDriver
    from rollcage.sandbox.manager.manager import Manager

    folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="rollcage-doctor-")
    try:
        async with Manager({"here": DockerDriver(endpoint)}, folder) as manager:
            spec = SandboxSpec(memory_bytes=PROBE_BYTES, num_pids=PROBE_PIDS, ttl_s=120.0)
            sandbox = await manager.create(spec, deadline_s=60.0)
            try:

                async def run(command: str) -> str:
                    return (await sandbox.exec(command, timeout_s=20.0)).stdout_text

                yield run
            finally:
                await sandbox.delete()
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def state_folder(folder: Path) -> Finding:
    """Check that the manager's folder can be written."""
    there = next((path for path in (folder, *folder.parents) if os.path.exists(path)), Path("/"))
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        mend = "choose another: --folder, or $ROLLCAGE_SANDBOX"
        return Finding("state", False, f"the state folder {folder} cannot be written ({error.strerror})", mend)
    return Finding("state", True, f"the state folder {folder} can be written")


def _halves(error: SandboxError) -> tuple[str, str]:
    """Return what is wrong and what to do, of an error that says both."""
    wrong, colon, mend = str(error).partition(": ")
    return (wrong, mend.strip()) if colon else (str(error), "")
