"""Rollcage's manager as a contender: ``python -m rollcage.benchmarks.sandbox.ours NAME IMAGE NETWORK``."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

from rollcage import __version__
from rollcage.benchmarks.sandbox.contender import MEMORY_BYTES, Run, serve
from rollcage.sandbox.base import Sandbox
from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.manager.fleet import Settings
from rollcage.sandbox.manager.manager import Manager
from rollcage.sandbox.manager.placement import HostLimits
from rollcage.sandbox.types import MIB, SandboxSpec

NUM_WARM = 8


class Ours:
    """The manager in this process, with its store, probes and reconciler at work.

    Args:
        image: of all boxes.
        warm: take them from a warm pool.
    """

    def __init__(self, image: str, *, warm: bool) -> None:
        self.version = __version__
        self._warm = warm
        self._spec = SandboxSpec(image=image, memory_bytes=MEMORY_BYTES, cpus=1.0)
        self._folder = tempfile.TemporaryDirectory(prefix="rollcage-bench-")
        limits = HostLimits(cpu_overcommit=1000.0, max_starts=8)
        self._manager = Manager({"local": DockerDriver()}, self._folder.name, settings=Settings(limits=limits))

    async def open(self) -> None:
        """See `Contender`."""
        await self._manager.open()
        if self._warm:
            self._manager.keep_warm(self._spec, NUM_WARM)

    async def create(self) -> Any:
        """See `Contender`."""
        return await self._manager.create(self._spec)

    async def run(self, box: Sandbox, command: str, timeout_s: float) -> str:
        """See `Contender`."""
        result = await box.exec(command, timeout_s=timeout_s)
        if result.timed_out:
            raise TimeoutError
        if result.truncated:
            return (
                f"{result.num_stdout_bytes / 1e6:.0f} MB came; the first and last {len(result.stdout) / MIB:g} MiB kept"
            )
        return result.stdout_text

    async def session(self, box: Sandbox) -> Run | None:
        """See `Contender`."""
        shell = await box.session()

        async def run(command: str) -> str:
            return (await shell.run(command)).stdout_text

        return run

    async def delete(self, box: Sandbox) -> None:
        """See `Contender`."""
        await box.delete()

    async def close(self) -> None:
        """See `Contender`."""
        for info in await self._manager.list_sandboxes():
            await (await self._manager.attach(info.id)).delete()
        await self._manager.close()
        self._folder.cleanup()


if __name__ == "__main__":
    name, image, _ = sys.argv[1:]
    sys.exit(serve(lambda: Ours(image, warm=name.endswith("warm"))))
