"""One process started in a running container, and the pipe to it: Docker's hijacked exec connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rollcage.sandbox.drivers.docker_api import one_line
from rollcage.sandbox.drivers.docker_frost import Frost

import aiohttp  # isort: skip  (docker_api says how to get these where they are missing)
from aiodocker import Docker, DockerError  # isort: skip
from aiodocker.execs import Exec  # isort: skip
from aiodocker.stream import Stream  # isort: skip

_WRITE_BYTES = 1 << 18
_STDERR_BYTES = 1 << 12
STDOUT, STDERR = 1, 2


class ExecPipe:
    """A process's stdin, stdout and stderr; also a `rollcage.sandbox.guest.channel.Duplex`.

    Both ways have back-pressure: a queue of 128 KiB pauses the socket, and a write waits for the socket's buffer.
    """

    def __init__(self, run: Exec, stream: Stream, started: Callable[[], None]) -> None:
        self._run = run
        self._stream = stream
        self._started = started
        self._rest = b""
        self.stderr = b""
        """The end of what came on stderr while `read` read stdout."""

    @classmethod
    async def open(
        cls,
        docker: Docker,
        frost: Frost,
        container: str,
        command: Sequence[str],
        *,
        stdin: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> ExecPipe:
        """Start a process; raises DockerError."""
        run = await docker.containers.container(container).exec(list(command), stdin=stdin, environment=env or {})
        await frost.begin(container, run)
        stream = run.start()
        try:
            await stream.__aenter__()
        except BaseException as error:
            if isinstance(error, DockerError) and error.status in (404, 409):
                frost.started(container, run)
            await _close(stream)
            raise
        return cls(run, stream, lambda: frost.started(container, run))

    async def read_any(self) -> tuple[int, bytes] | None:
        """Return the next piece and where it came from (`STDOUT` or `STDERR`), None at the end. May raise OSError."""
        try:
            message = await self._stream.read_out()
        except (aiohttp.ClientError, AssertionError) as error:
            raise ConnectionError(one_line(error)) from error
        self._started()
        return None if message is None else (message.stream, message.data)

    async def read(self, num_bytes: int) -> bytes:
        """Return the next bytes of stdout, at most so many; b"" at the end. May raise OSError."""
        while not self._rest:
            piece = await self.read_any()
            if piece is None:
                return b""
            if piece[0] == STDOUT:
                self._rest = piece[1]
            else:
                self.stderr = (self.stderr + piece[1])[-_STDERR_BYTES:]
        data, self._rest = self._rest[:num_bytes], self._rest[num_bytes:]
        return data

    async def write(self, data: bytes) -> None:
        """Write all of it; waits while the other side reads too slowly. May raise OSError."""
        try:
            for at in range(0, len(data), _WRITE_BYTES):
                await self._stream.write_in(data[at : at + _WRITE_BYTES])
        except (aiohttp.ClientError, RuntimeError, AssertionError) as error:  # aiodocker's words for "closed"
            raise ConnectionError(one_line(error)) from error

    def end_input(self) -> None:
        """Close the process's stdin; what it writes can still be read."""
        connection = self._stream._resp.connection if self._stream._resp is not None else None
        if connection is not None and connection.transport is not None and connection.transport.can_write_eof():
            connection.transport.write_eof()

    async def exit_code(self) -> int | None:
        """Return the process's exit code, None while it runs. May raise DockerError."""
        code = (await self._run.inspect())["ExitCode"]
        return None if code is None else int(code)

    async def close(self) -> None:
        """Let go of the connection; the process may live on. Idempotent."""
        await _close(self._stream)


async def _close(stream: Stream) -> None:
    connection = stream._resp.connection if stream._resp is not None else None
    transport = connection.transport if connection is not None else None
    try:
        await stream.close()
    except (aiohttp.ClientError, OSError, AssertionError):
        pass  # the other side was faster
    finally:
        if transport is not None and transport.get_write_buffer_size():
            transport.abort()  # it would stay open until the other side reads what is left, which may be never
