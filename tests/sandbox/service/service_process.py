"""A service in a process of its own, as users start it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rollcage.sandbox.sync import SyncSandboxes


class ServiceProcess:
    """``rollcage sandbox serve`` without containers."""

    def __init__(self, folder: Path, *arguments: str, endpoint: str = "process:") -> None:
        command = ["-m", "rollcage", "sandbox", "serve", "--json", "--folder", str(folder), "--endpoint", endpoint]
        self.process = subprocess.Popen(
            [sys.executable, *command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], 30)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.kill()
            raise AssertionError(f"the service did not start: {self.errors}")
        self.told = json.loads(line)
        self.address: str = self.told["address"]

    def stop(self, *, timeout_s: float = 30.0) -> int:
        """Send SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.end(timeout_s=timeout_s)

    def end(self, *, timeout_s: float = 30.0) -> int:
        """Wait for its end; returns the exit code."""
        _, self.errors = self.process.communicate(timeout=timeout_s)
        return self.process.returncode

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        self.end()

    @property
    def memory_bytes(self) -> int:
        """What it has in memory now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    @property
    def peak_bytes(self) -> int:
        """The most that it had in memory so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


@contextlib.contextmanager
def running(folder: Path, *arguments: str) -> Iterator[ServiceProcess]:
    """Lend a service; it is stopped at the end, and must have nothing to complain of."""
    service = ServiceProcess(folder, *arguments)
    try:
        yield service
    finally:
        if service.process.poll() is None:
            service.stop()
    assert service.errors == ""


def delete_all(folder: Path) -> None:
    """Delete the sandboxes of a service that has ended: they live on without it."""
    with SyncSandboxes(folder=folder, endpoints=("process:",)) as sandboxes:
        for info in sandboxes.list_sandboxes():
            sandboxes.attach(info.id).delete()
