"""A private Docker daemon in a folder of its own, which may be killed: its sandboxes die with it."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from rollcage.errors import UserError
from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.drivers.docker_api import Engine
from rollcage.sandbox.errors import DaemonUnreachable, HostUnavailable

START_S = 60.0
STOP_S = 30.0


class OwnDaemon:
    """A ``dockerd``; use it with ``async with``.

    Args:
        folder: of all that it keeps; removed at the end.

    Attributes:
        endpoint: where it listens.
        num_restarts: so far.

    Raises:
        UserError: this user is not root, or there is no ``dockerd``.
    """

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0 or shutil.which("dockerd") is None:
            raise UserError("--own-daemon: only root can start a Docker daemon, and only where dockerd is installed")
        self._folder, self.endpoint, self.num_restarts = folder, f"unix://{folder}/socket", 0
        self._namespace = f"chaos-{secrets.token_hex(4)}"
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._orphans: set[str] = set()

    async def __aenter__(self) -> OwnDaemon:
        self._folder.mkdir(mode=0o700)
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(STOP_S):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        await asyncio.to_thread(self._remove)

    async def restart(self) -> None:
        """Kill it and start it again; concurrent calls take turns."""
        async with self._lock:
            self.num_restarts += 1
            await self.kill()
            await self.start()

    async def kill(self) -> None:
        """End it without a word, as the death of its machine would. Its containers live on until it is back."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()
        self._orphans = await asyncio.to_thread(self._containers)

    async def start(self) -> None:
        """Start it again after `kill`; raises UserError."""
        # Its containerd dies with it; a new one is started only where the old one's number is nobody's.
        (self._folder / "exec" / "containerd" / "containerd.pid").unlink(missing_ok=True)
        await self._start()
        # It has ended all that ran; what its predecessor had not quite started it never looks at again (20.10).
        await asyncio.to_thread(_kill_containers, self._orphans)

    async def copy_image(self, source: str, image: str) -> None:
        """Take an image over from another daemon; raises SandboxError."""
        here, there = Engine(source, call_timeout_s=120.0), Engine(self.endpoint, call_timeout_s=120.0)
        try:
            async with here.call("save"), there.call("load"):
                async with await here.request("GET", f"images/{image}/get") as saved:
                    async with await there.request("POST", "images/load", data=saved.content.iter_any()) as loaded:
                        await loaded.read()
        finally:
            await here.close()
            await there.close()

    async def _start(self) -> None:
        name = self._namespace
        with (self._folder / "log").open("ab") as log:
            self._process = process = await asyncio.create_subprocess_exec(
                # Without a network of its own, a daemon without a bridge would remove the machine's.
                *("unshare", "--net", "dockerd", "--host", self.endpoint, "--data-root", f"{self._folder}/data"),
                *("--exec-root", f"{self._folder}/exec", "--pidfile", f"{self._folder}/pid"),
                *("--bridge", "none", "--iptables=false"),
                *("--containerd-namespace", name, "--containerd-plugins-namespace", f"plugins.{name}"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(START_S):
                while not await self._answers():
                    if process.returncode is not None:
                        break
                    await asyncio.sleep(0.2)
                else:
                    return
        except TimeoutError:
            pass
        tail = (self._folder / "log").read_text(errors="replace")[-500:]
        raise UserError(f"dockerd did not start: {' '.join(tail.split())}")

    async def _answers(self) -> bool:
        driver = DockerDriver(self.endpoint, call_timeout_s=5.0)
        try:
            await driver.status()
            return True
        except (DaemonUnreachable, HostUnavailable):
            return False
        finally:
            await driver.close()

    def _remove(self) -> None:
        """Remove all of it; where the daemon had to be killed, its containers are still there."""
        _kill_containers(self._containers())
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if line.split()[1].startswith(f"{self._folder}/"):
                subprocess.run(("umount", "-l", line.split()[1]), check=False, timeout=30)
        shutil.rmtree(self._folder)

    def _containers(self) -> set[str]:
        """Return the ids of the containers that have processes."""
        shims = [text for _, text in _processes() if f"-namespace\0{self._namespace}" in text]
        return {words[words.index("-id") + 1] for text in shims if "-id" in (words := text.split("\0"))}


def _kill_containers(ids: set[str]) -> None:
    for pid, text in _processes():
        if any(container_id in text for container_id in ids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _processes() -> list[tuple[int, str]]:
    """Return the processes of this machine, with their commands and control groups."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has ended
                text = (folder / "cmdline").read_text(errors="replace") + (folder / "cgroup").read_text()
                found.append((int(folder.name), text))
    return found
