"""A Docker daemon as its own client sees it, and what a test has made there."""

from __future__ import annotations

import subprocess
import time

from rollcage.sandbox.drivers.base import LABEL_MANAGER


class Daemon:
    """A daemon, and the id with which the test's manager labels what it makes there."""

    def __init__(self, endpoint: str, manager: str) -> None:
        self.endpoint, self.manager = endpoint, manager

    def __call__(self, *arguments: str) -> list[str]:
        command = ("docker", "-H", self.endpoint, *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()

    def containers(self) -> list[str]:
        return self("ps", "-aq", "--filter", f"label={LABEL_MANAGER}={self.manager}")

    def wait_empty(self, timeout_s: float = 30.0) -> None:
        """Episodes that the run's end cut short end their turn and then their sandboxes, in threads of their own."""
        ends_at = time.monotonic() + timeout_s
        while self.containers():
            assert time.monotonic() < ends_at, "sandboxes outlive their run"
            time.sleep(0.2)
