"""One Docker daemon's API: aiodocker with a deadline on every call and typed errors of one line."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from rollcage.errors import require
from rollcage.sandbox.errors import DaemonForbidden, DaemonUnreachable, HostUnavailable, SandboxError

require("aiodocker", "sandbox")

import aiohttp  # noqa: E402
from aiodocker import Docker, DockerError  # noqa: E402
from yarl import URL  # noqa: E402

from rollcage.sandbox.drivers.docker_frost import Frost  # noqa: E402

T = TypeVar("T")
DEFAULT_ENDPOINT = "unix:///var/run/docker.sock"


class Engine:
    """A connection to one daemon. It is made inside a running event loop, at the first call.

    Args:
        endpoint: "unix:///path", "tcp://host:port", "ssh://user@host".
        call_timeout_s: no call takes longer.
    """

    def __init__(self, endpoint: str = DEFAULT_ENDPOINT, *, call_timeout_s: float = 30.0) -> None:
        self.endpoint = endpoint
        self.call_timeout_s = call_timeout_s
        self._docker: Docker | None = None
        self._closed = False
        self.endless: set[aiohttp.ClientResponse] = set()
        """Answers that go on for ever; `close` ends them."""
        self.frost = Frost()

    @asynccontextmanager
    async def call(self, what: str, *, timeout_s: float | None = None) -> AsyncIterator[Docker]:
        """Speak to the daemon: the body may make several requests, which all end by one deadline.

        A `DockerError` that the body does not catch itself is turned into one of ours.

        Raises:
            DaemonUnreachable, DaemonForbidden: nobody listens, or not to us.
            HostUnavailable: no answer in time, or an internal error of the daemon.
        """
        limit_s = self.call_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                yield self._connected()
        except TimeoutError as error:
            raise HostUnavailable(f"{self.endpoint} did not {what} within {limit_s:g} s.") from error
        except DockerError as error:
            raise self.translate(error, what) from error
        except (aiohttp.ClientError, OSError) as error:
            raise HostUnavailable(
                f"{self.endpoint} did not {what}: the connection broke ({one_line(error)})."
            ) from error

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        data: AsyncIterable[bytes] | bytes | None = None,
    ) -> aiohttp.ClientResponse:
        """Make a request whose body or answer is streamed, within `call`. The caller closes the answer."""
        return await self._connected()._do_query(
            URL(path).with_query(list(query)), method, data=data, headers={"Content-Type": "application/x-tar"}
        )

    def translate(self, error: DockerError, what: str) -> SandboxError:
        """Return our error for one of Docker's that means nothing special to the call."""
        if error.status == 900:  # aiodocker's own number: there is no connection
            cause = error.__context__
            number = cause.errno if isinstance(cause, OSError) else None
            if number in (errno.EACCES, errno.EPERM):
                return DaemonForbidden(
                    f"no permission to talk to the Docker daemon at {self.endpoint}:"
                    " run  sudo usermod -aG docker $USER  and log in again, or run as root."
                )
            if number is not None:
                return DaemonUnreachable(
                    f"no Docker daemon answers at {self.endpoint}: start it (sudo systemctl start docker, or"
                    "  dockerd &), or name another endpoint."
                )
        return HostUnavailable(f"{self.endpoint} did not {what}: {one_line(error.message)}")

    def _connected(self) -> Docker:
        if self._closed:
            raise HostUnavailable(f"the connection to {self.endpoint} has been closed.")
        if self._docker is None:
            try:
                self._docker = Docker(url=self.endpoint)
            except ValueError as error:
                raise DaemonUnreachable(
                    f"{self.endpoint!r} is no Docker endpoint: use unix:///path, tcp://host:port or ssh://user@host."
                ) from error
            # Each live sandbox holds a connection for good; aiohttp would stop at 100 of them.
            self._docker.connector._limit = 0
        return self._docker

    async def close(self) -> None:
        """Let go of all connections; idempotent."""
        self._closed = True
        for response in self.endless:
            response.content.set_exception(ConnectionError("it was closed"))
        docker, self._docker = self._docker, None
        if docker is not None:
            await docker.close()


async def together(*requests: Coroutine[Any, Any, T]) -> list[T]:
    """Make several requests at once. Where one fails none goes on: beyond its `Engine.call` it had no deadline."""
    tasks = [asyncio.create_task(request) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def show(docker: Docker, name: str) -> dict[str, Any] | None:
    """Return what Docker tells of a container, None where there is none. Within a `call`."""
    try:
        return await docker.containers.container(name).show()
    except DockerError as error:
        if error.status == 404:
            return None
        raise


async def read_log(engine: Engine, name: str, num_lines: int) -> str:
    """Return the last lines of a container's main process, "" where there is no container."""
    async with engine.call(f"show the log of {name}") as docker:
        try:
            return "".join(await docker.containers.container(name).log(stdout=True, stderr=True, tail=num_lines))
        except DockerError as error:
            if error.status == 404:
                return ""
            raise


def one_line(message: object) -> str:
    """Return a message without line breaks."""
    return " ".join(str(message).split())
