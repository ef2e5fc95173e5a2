"""What must not meet: the start of a process in a container, and the freezing of that container.

A process whose start meets a freeze never gets going, and the daemon (20.10 with runc 1.1 on cgroup v1) then hangs in
every later call about that container, its removal included, until somebody thaws its cgroup by hand. Saving a container
freezes it, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiodocker import DockerError  # isort: skip  (docker_api says how to get these where they are missing)
from aiodocker.execs import Exec  # isort: skip

_UNSTARTED_S = 2.0
"""So long after its request broke off, a process may still be about to be started."""


class Frost:
    """Keeps the two apart, in the containers of one daemon."""

    def __init__(self) -> None:
        self._starting: dict[str, set[Exec]] = {}
        self._thawed: dict[str, asyncio.Event] = {}

    async def begin(self, name: str, run: Exec) -> None:
        """Wait until a process may be started; whoever starts it tells `started` when that is known."""
        while (thawed := self._thawed.get(name)) is not None:
            await thawed.wait()
        self._starting.setdefault(name, set()).add(run)

    def started(self, name: str, run: Exec) -> None:
        """It runs, has ended, or was refused; idempotent."""
        if name in self._starting:
            self._starting[name].discard(run)
            if not self._starting[name]:
                del self._starting[name]

    def forget(self, name: str) -> None:
        """The container is gone."""
        self._starting.pop(name, None)

    @asynccontextmanager
    async def freezing(self, name: str) -> AsyncIterator[None]:
        """For the time of the block, in which a container is frozen, no process is being started in it."""
        while (thawed := self._thawed.get(name)) is not None:
            await thawed.wait()
        thawed = self._thawed[name] = asyncio.Event()
        try:
            for run in tuple(self._starting.get(name, ())):
                await _settled(run)
                self.started(name, run)
            yield
        finally:
            del self._thawed[name]
            thawed.set()


async def _settled(run: Exec) -> None:
    """Wait until a process runs, has ended, or will not start any more."""
    loop, pause_s = asyncio.get_running_loop(), 0.005
    ends_s = loop.time() + _UNSTARTED_S
    while True:
        try:
            found = await run.inspect()
        except DockerError as error:
            if error.status not in (404, 409):  # else it went with its container
                raise
            return
        is_about_to = found["Running"] or loop.time() < ends_s
        if found["Pid"] or found["ExitCode"] is not None or not is_about_to:
            return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.1)
