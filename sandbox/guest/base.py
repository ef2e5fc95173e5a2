"""The guest seam: one connection to the inside of one container."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from rollcage.sandbox.types import MIB, ExecRequest, ExecResult, Output, Vitals

OnOutput = Callable[[Output], Awaitable[None]]


class GuestSession(Protocol):
    """A shell inside."""

    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MIB) -> ExecResult:
        """See `rollcage.sandbox.base.Session.run`."""
        ...

    async def close(self) -> None:
        """End it; idempotent."""
        ...


class Guest(Protocol):
    """Runs commands and moves files inside. All calls may run side by side. `generation` of results is left at 1.

    Every call ends by its own deadline, with some grace, and raises GuestLost once the connection is gone.
    """

    async def exec(
        self, request: ExecRequest, on_output: OnOutput | None = None, stdin: AsyncIterator[bytes] | None = None
    ) -> ExecResult:
        """Run a command. With ``on_output`` the pieces go there (awaited: back-pressure). Cancelling kills it.

        With ``stdin`` the input comes from there, as fast as the command reads; what it raises kills the command, and
        is raised here.
        """
        ...

    async def open_session(self, *, env: dict[str, str], cwd: str) -> GuestSession:
        """Start a shell."""
        ...

    async def put(self, chunks: AsyncIterator[bytes], folder: str, *, timeout_s: float) -> None:
        """Unpack a tar stream into ``folder`` (from the work folder, where relative), which is made.

        Raises:
            NoSuchPath, UnsafePath: it cannot be written, or a member leads out of it.
        """
        ...

    def get(self, path: str, *, timeout_s: float) -> AsyncIterator[bytes]:
        """Yield a tar stream of the file or folder ``path``, members named from its last part on. Raises NoSuchPath."""
        ...

    async def ping(self, *, timeout_s: float) -> Vitals:
        """Prove that processes can be started inside, and return the vitals.

        Raises:
            SandboxUnavailable: none can, although the guest answers. DeadlineExceeded, GuestLost: it does not answer.
        """
        ...

    async def close(self) -> None:
        """End the connection, and the agent with it; idempotent."""
        ...
