"""The manager's process as the harness sees it: started, killed at random moments, and started again on its folder."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rollcage.errors import RollcageError
from rollcage.sandbox.client.address import read_address
from rollcage.sandbox.client.client import Client
from rollcage.sandbox.errors import ServiceUnreachable

START_S = 30.0
STOP_S = 30.0
COMMAND = (sys.executable, "-m", "rollcage.sandbox.chaos.kept")


class Keeper:
    """Starts and kills the manager.

    Args:
        folder: the manager's.
        endpoint: the daemon, as the manager sees it.
        command: what is run with both.

    Attributes:
        num_kills: so far.
    """

    def __init__(self, folder: Path, endpoint: str, command: Sequence[str] = COMMAND) -> None:
        self._folder, self._command = folder, (*command, str(folder), endpoint)
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self.num_kills = 0

    async def start(self) -> None:
        """Start it and wait until it answers; raises RollcageError with the end of its log where it does not."""
        async with self._lock:
            await self._start()

    async def kill(self) -> None:
        """Kill it and start it again; raises RollcageError where it has ended by itself, or does not start."""
        async with self._lock:
            process = self._running()
            self.num_kills += 1
            process.kill()
            await process.wait()
            await self._start()

    async def up(self) -> None:
        """Wait while it is being started again."""
        async with self._lock:
            pass

    async def stop(self) -> int | None:
        """Tell it to end; returns its exit code, or None where it had to be killed. Idempotent."""
        async with self._lock:
            process = self._process
            if process is None:
                return 0
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(STOP_S):
                    return await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
                return None
            finally:
                self._process = None

    def client(self) -> Client:
        """Return a client that follows it over its restarts."""
        service = read_address(self._folder)
        if service is None:
            raise ServiceUnreachable("the manager has no address")
        return Client(service.address, service.token, folder=self._folder)

    @property
    def pid(self) -> int:
        """Its process id now."""
        return self._running().pid

    def files(self) -> list[str]:
        """Return what its file descriptors are, sorted."""
        found = []
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # it is being closed
                found.append(entry.readlink().name.partition(":")[0])
        return sorted(found)

    def children(self) -> list[int]:
        """Return its child processes."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]

    def memory_bytes(self) -> int:
        """Return the memory that it has now, and forget its peak."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def peak_bytes(self) -> int:
        """Return the most memory that it has had since `memory_bytes`."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

    def log_tail(self) -> str:
        """Return the end of what it wrote."""
        path = self._folder / "manager.log"
        return path.read_text(errors="replace")[-2000:] if path.exists() else ""

    def traceback(self) -> str:
        """Return the first traceback that it wrote, "" where there is none."""
        path = self._folder / "manager.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        _, mark, rest = text.partition("Traceback (most recent call last):")
        return mark and f"{mark}{rest}"[:4000]

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RollcageError("the manager was not started")
        if (code := self._process.returncode) is not None:
            raise RollcageError(f"the manager has ended by itself, with exit code {code}: {self.log_tail()}")
        return self._process

    async def _start(self) -> None:
        before = read_address(self._folder)
        with (self._folder / "manager.log").open("ab") as log:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        try:
            async with asyncio.timeout(START_S):
                while (found := read_address(self._folder)) is None or found == before or not await self._answers():
                    if process.returncode is not None:
                        raise RollcageError(f"the manager ended with exit code {process.returncode}: {self.log_tail()}")
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise RollcageError(f"the manager did not start within {START_S:g} s: {self.log_tail()}") from None

    async def _answers(self) -> bool:
        async with self.client() as client:
            try:
                await client.check()
                return True
            except RollcageError:
                return False
