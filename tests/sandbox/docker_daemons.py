"""Docker daemons for tests: the machine's own where it answers, else one started here; and a second, separate one.

``python -m tests.sandbox.docker_daemons COMMAND...`` runs a command, such as pytest, with a daemon that has the base
image: making it takes longer than a test may.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.drivers.docker_api import DEFAULT_ENDPOINT, Engine
from rollcage.sandbox.errors import DaemonUnreachable, HostUnavailable
from rollcage.sandbox.images import BASE_IMAGE
from rollcage.sandbox.images.base import build_base

ENDPOINT = os.environ.get("DOCKER_HOST", DEFAULT_ENDPOINT)
HOW_TO = (
    f"These tests need a Docker daemon, and none answers at {ENDPOINT}. As root they start one themselves where"
    " `dockerd` is installed (Debian: apt-get install docker.io debootstrap busybox-static). Elsewhere: install Docker"
    " Engine or Docker Desktop, start it, or set DOCKER_HOST to a daemon that this user may use."
)
_START_S = 60.0


def answers(endpoint: str) -> bool:
    """Whether a daemon answers; a DaemonForbidden is raised."""

    async def ask() -> None:
        driver = DockerDriver(endpoint, call_timeout_s=10.0)
        try:
            await driver.status()
        finally:
            await driver.close()

    try:
        asyncio.run(ask())
    except (DaemonUnreachable, HostUnavailable):
        return False
    return True


def start(folder: Path, endpoint: str, *arguments: str, prefix: tuple[str, ...] = ()) -> int:
    """Start a daemon, which outlives this process; returns its process id once it answers."""
    with (folder / "dockerd.log").open("ab") as log:
        process = subprocess.Popen(
            (*prefix, "dockerd", "--host", endpoint, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    ends_at = time.monotonic() + _START_S
    while not answers(endpoint):
        if process.poll() is not None or time.monotonic() > ends_at:
            stop(process.pid)
            tail = (folder / "dockerd.log").read_text(errors="replace")[-1500:]
            raise RuntimeError(f"dockerd did not start at {endpoint}. The end of its log:\n{tail}\n{HOW_TO}")
        time.sleep(0.2)
    process.returncode = 0  # it is no longer this object's business: `stop` waits for it
    return process.pid


def stop(pid: int) -> None:
    """End a daemon that `start` started, here or in another process."""
    for number, wait_s in ((signal.SIGTERM, 30.0), (signal.SIGKILL, 10.0)):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        ends_at = time.monotonic() + wait_s
        while time.monotonic() < ends_at:
            try:
                if os.waitpid(pid, os.WNOHANG)[0] == pid:
                    return
            except ChildProcessError:
                if not _is_alive(pid):
                    return
            time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def machine_lock() -> Iterator[dict[str, object]]:
    """A dictionary that all test processes of this user share, one at a time."""
    folder = Path(tempfile.gettempdir()) / f"rollcage-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / "state.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read()
        state = json.loads(text) if text else {}
        state["folder"] = str(folder)
        try:
            yield state
        finally:
            file.seek(0)
            file.truncate()
            json.dump(state, file)


@contextmanager
def shared_daemon() -> Iterator[str]:
    """The machine's daemon. Where none answers, the first test process starts one, and the last one stops it."""
    with machine_lock() as state:
        if not answers(ENDPOINT):
            if os.geteuid() != 0 or shutil.which("dockerd") is None or not ENDPOINT.startswith("unix:"):
                raise RuntimeError(HOW_TO)
            state["pid"] = start(Path(str(state["folder"])), ENDPOINT)
        users = [user for user in state.get("users", []) if _is_alive(user)]  # type: ignore[attr-defined]
        state["users"] = [*users, os.getpid()]
    try:
        yield ENDPOINT
    finally:
        with machine_lock() as state:
            users = [user for user in state["users"] if _is_alive(user) and user != os.getpid()]  # type: ignore[attr-defined]
            state["users"] = users
            if not users and isinstance(pid := state.pop("pid", None), int):
                stop(pid)


@contextmanager
def separate_daemon() -> Iterator[str]:
    """A second real daemon with folders of its own, whose containers have no network.

    It lives in a network namespace of its own: a daemon without a bridge removes the one that belongs to the first.
    """
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        raise RuntimeError("A second Docker daemon can be started by root only, where `dockerd` is installed.")
    folder = Path(tempfile.mkdtemp(prefix="rollcage-d-"))  # short: it holds unix sockets
    namespace = f"rollcage-{uuid.uuid4().hex}"
    try:
        endpoint = f"unix://{folder}/docker.sock"
        pid = start(
            folder,
            endpoint,
            *("--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"),
            *("--bridge", "none", "--iptables=false", "--containerd-namespace", namespace),
            *("--containerd-plugins-namespace", f"plugins.{namespace}"),
            prefix=("unshare", "--net"),
        )
        try:
            yield endpoint
        finally:
            stop(pid)
    finally:
        for mount in Path("/proc/self/mounts").read_text().splitlines():
            if mount.split()[1].startswith(f"{folder}/"):
                subprocess.run(("umount", "-l", mount.split()[1]), check=False)
        shutil.rmtree(folder)


async def copy_image(source: str, target: str, image: str = BASE_IMAGE) -> None:
    """Copy an image from one daemon to another, streamed."""
    here, there = Engine(source, call_timeout_s=120.0), Engine(target, call_timeout_s=120.0)
    try:
        async with here.call("save"), there.call("load"):
            async with await here.request("GET", f"images/{image}/get") as saved:
                async with await there.request("POST", "images/load", data=saved.content.iter_any()) as loaded:
                    await loaded.read()
    finally:
        await here.close()
        await there.close()


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main(command: list[str]) -> int:
    """Run ``command`` while the shared daemon runs, which has the base image; returns its exit code."""
    try:
        with shared_daemon() as endpoint:
            asyncio.run(build_base(endpoint, progress=_tell))
            return subprocess.run(command, check=False).returncode
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
