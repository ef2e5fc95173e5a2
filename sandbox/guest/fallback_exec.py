"""Processes started in a container by plain Docker execs, and the killing of those that carry a mark."""

from __future__ import annotations

import asyncio
import weakref

from rollcage.sandbox.drivers.docker_api import Engine, one_line
from rollcage.sandbox.drivers.docker_exec import ExecPipe
from rollcage.sandbox.errors import GuestLost, SandboxError, SandboxUnavailable

from aiodocker import DockerError  # isort: skip  (docker_api says how to get it where it is missing)

GRACE_S = 10.0
"""An outer deadline is so much later than the inner one; an exec may be slow to start."""
MARK = "ROLLCAGE_EXEC"
"""The environment variable that marks a command's processes."""

# Kills all that carries the mark $1 in its environment, but process $2, until none is left.
KILL = f"""hunt() {{ for i in 1 2 3 4 5 6 7 8 9; do found=
for e in $(grep -l "{MARK}=$1" /proc/[0-9]*/environ 2>/dev/null); do e=${{e#/proc/}}; e=${{e%/environ}}
[ "$e" != "$2" ] && found="$found $e"; done
[ -z "$found" ] && break; kill -KILL $found 2>/dev/null; done; }}"""


class Execs:
    """The execs of one container.

    Args:
        engine: the host.
        name: the container's.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self._name = engine, name
        self._closed = False
        self._killers: set[asyncio.Task[None]] = set()
        self._pipes: weakref.WeakSet[ExecPipe] = weakref.WeakSet()

    async def open(
        self, command: tuple[str, ...], *, stdin: bool = False, env: dict[str, str] | None = None
    ) -> ExecPipe:
        """Start a process; raises GuestLost where the container does not run."""
        if self._closed:
            raise GuestLost(f"The connection to {self._name} was closed.")
        async with self._engine.call(f"run a command in {self._name}") as docker:
            try:
                pipe = await ExecPipe.open(docker, self._engine.frost, self._name, command, stdin=stdin, env=env)
                self._pipes.add(pipe)
                return pipe
            except DockerError as error:
                if error.status in (404, 409) or "is not running" in error.message:
                    raise GuestLost(f"{self._name} takes no command: {one_line(error.message)}") from error
                if "OCI runtime exec failed" in error.message:
                    text = f"no shell can be started in {self._name}: {one_line(error.message)}"
                    raise SandboxUnavailable(text) from error
                raise

    async def exit_code(self, pipe: ExecPipe, what: str) -> int | None:
        """Return how a process ended, None while it runs; ``what`` names it in errors."""
        async with self._engine.call(f"say how {what} ended"):
            return await pipe.exit_code()

    async def kill(self, mark: str, spare: str = "0") -> None:
        """Kill what carries the mark, but the process of that number."""
        try:
            async with asyncio.timeout(GRACE_S):
                pipe = await self.open(("sh", "-c", f'{KILL}\nhunt "$0" "$1"', mark, spare))
                try:
                    while await pipe.read_any():
                        pass
                finally:
                    await pipe.close()
        except (SandboxError, TimeoutError, OSError):
            pass  # the container or its daemon is dead, or too full to start even this: its owner removes it

    def kill_later(self, mark: str) -> None:
        """Kill what carries the mark, beside whoever waits."""
        task = asyncio.create_task(self.kill(mark))
        self._killers.add(task)
        task.add_done_callback(self._killers.discard)

    async def settle(self) -> None:
        """Wait until what is to be killed is dead."""
        if self._killers:
            await asyncio.wait(self._killers)

    async def close(self) -> None:
        """Start nothing more, once what is to be killed is dead, and let go of every pipe, whoever still holds it."""
        await self.settle()
        self._closed = True
        for pipe in tuple(self._pipes):
            await pipe.close()
