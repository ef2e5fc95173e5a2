"""The agents of the process driver: children of this process, and the pipes to them."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rollcage.sandbox.errors import SandboxUnavailable


class AgentPipe:
    """A `Duplex` to an agent that is a child of this process. Make it with `start`.

    The agent is its own: one whose pipe is dropped unclosed, or is open at the interpreter's end, is killed.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        stdin: asyncio.StreamWriter,
        stdout: asyncio.StreamReader,
        ends: list[asyncio.StreamWriter],
        register: set[AgentPipe],
    ) -> None:
        self.process = process
        self._stdin, self._stdout, self._ends, self._register = stdin, stdout, ends, register
        register.add(self)
        weakref.finalize(self, _end, process)

    @classmethod
    async def start(
        cls, argv: tuple[str, ...], env: Mapping[str, str], cwd: Path, log: Path, register: set[AgentPipe]
    ) -> AgentPipe:
        """Start the agent, which writes its stderr to ``log``. The pipe is in ``register`` until it is closed.

        Raises:
            SandboxUnavailable: it cannot be started.
        """
        # Sockets, for they hold more than pipes; one each way, for the end of one must not lose what is in the other.
        stdin, their_stdin = socket.socketpair()
        stdout, their_stdout = socket.socketpair()
        ends: list[asyncio.StreamWriter] = []
        try:
            with their_stdin, their_stdout, log.open("ab") as stderr:
                _, writer = await asyncio.open_connection(sock=stdin)
                ends.append(writer)
                reader, other = await asyncio.open_connection(sock=stdout, limit=1 << 18)
                ends.append(other)
                process = await _started(argv, their_stdin.fileno(), their_stdout.fileno(), stderr.fileno(), env, cwd)
        except BaseException as error:
            for end in ends:
                end.close()
            stdin.close()
            stdout.close()
            if isinstance(error, OSError):
                raise SandboxUnavailable(f"The agent cannot be started: {error}") from error
            raise
        return cls(process, writer, reader, ends, register)

    async def read(self, num_bytes: int) -> bytes:
        """See `Duplex.read`."""
        return await self._stdout.read(num_bytes)

    async def write(self, data: bytes) -> None:
        """See `Duplex.write`."""
        self._stdin.write(data)
        await self._stdin.drain()

    async def close(self) -> None:
        """Close it and see the agent end, which is killed if it does not; idempotent."""
        self._register.discard(self)
        for end in self._ends:
            end.close()
            with suppress(OSError):
                await end.wait_closed()
        try:
            await asyncio.to_thread(self.process.wait, 5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)


async def _started(
    argv: tuple[str, ...], stdin: int, stdout: int, stderr: int, env: Mapping[str, str], cwd: Path
) -> subprocess.Popen[bytes]:
    """Start a process off the event loop; where the caller is called off meanwhile, none is left."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd, start_new_session=True
        )

    starting = asyncio.create_task(asyncio.to_thread(start))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait([starting])  # it uses what the caller closes
        if starting.exception() is None:
            _end(starting.result())
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # nothing where it was seen to end
    process.wait()
