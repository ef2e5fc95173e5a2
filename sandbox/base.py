"""The sandbox manager's face: what `Manager` (in process) and `Client` (over HTTP) both are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from rollcage.sandbox.archive import pack, split_target, unpack
from rollcage.sandbox.asked import checked_request
from rollcage.sandbox.errors import BadRequest
from rollcage.sandbox.types import (
    MIB,
    Event,
    ExecRequest,
    ExecResult,
    HostInfo,
    Output,
    SandboxInfo,
    SandboxSpec,
    Snapshot,
)

Command = str | Sequence[str]
"""A string for the shell, or the arguments of a program."""


class Session(Protocol):
    """A shell that stays: directory, variables and background jobs live on from command to command."""

    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MIB) -> ExecResult:
        """Run ``command`` in the shell; one at a time.

        At the deadline its processes are killed, and the result says ``timed_out``. A shell that does not come back
        then is replaced, and its state is lost: one that hangs itself, or that goes on with the ``b`` of ``a; b``,
        which no shell can be kept from otherwise. What of ``b`` needs no process may have happened by then.

        Raises:
            SandboxUnavailable, SandboxRestarted: as `Sandbox.exec`.
        """
        ...

    async def close(self) -> None:
        """End the shell and what it started; idempotent."""
        ...


class Sandbox(ABC):
    """One sandbox. Every call ends by its deadline; calls made to an earlier life raise `SandboxRestarted`.

    What follows from a few calls is written here, once; the manager's class and the client's fill in the others.
    """

    id: str

    async def exec(
        self,
        command: Command,
        *,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        stdin: bytes = b"",
        max_output_bytes: int = MIB,
    ) -> ExecResult:
        """Run a command to its end; see `ExecRequest` and `ExecResult`. A failing command is a result, no error.

        Background children do not hold it up, and live on.

        Raises:
            BadRequest: an argument is none.
            SandboxUnavailable: it is dead, paused or deleted.
            SandboxRestarted: it was restarted while the command ran.
            DeadlineExceeded: it gave no answer at all, somewhat after ``timeout_s``.
        """
        return await self._exec(_request(command, timeout_s, env, cwd, stdin, max_output_bytes))

    def stream(
        self,
        command: Command,
        *,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        stdin: bytes | AsyncIterator[bytes] = b"",
        max_output_bytes: int = MIB,
    ) -> AsyncGenerator[Output | ExecResult, None]:
        """As `exec`, but yield the output as it comes; the last item is the result.

        A slow reader slows the command down. Leaving the iteration early kills the command.

        Args:
            stdin: an iterator is asked for more while the command runs, as fast as that reads: so one can talk to it.
                Where it raises, the command is killed, and that is raised here. It needs Python inside.
        """
        if isinstance(stdin, bytes):
            return self._stream(_request(command, timeout_s, env, cwd, stdin, max_output_bytes))
        return self._stream(_request(command, timeout_s, env, cwd, b"", max_output_bytes), stdin)

    @abstractmethod
    async def session(self, *, env: Mapping[str, str] | None = None, cwd: str = "") -> Session:
        """Start a shell (bash where there is one, else sh)."""

    async def put(self, source: Path | str | bytes, target: str, *, timeout_s: float = 600.0) -> None:
        """Copy bytes, or the file or folder at a path, to the path ``target``; missing folders are made. Streamed.

        Raises:
            UnsafePath: the folder holds a symlink that leads out of it, or a device.
            NoSuchPath: ``target`` cannot be written.
        """
        folder, name = split_target(target)
        async with aclosing(pack(Path(source) if isinstance(source, str) else source, name)) as chunks:
            await self.put_archive(chunks, folder, timeout_s=timeout_s)

    async def get(self, source: str, target: Path | str, *, timeout_s: float = 600.0) -> None:
        """Copy the file or folder ``source`` to the path ``target``, which must not exist. Streamed.

        Raises:
            NoSuchPath: there is no ``source``.
            UnsafePath: a member would land outside of ``target``; nothing is left there then.
        """
        async with aclosing(self.get_archive(source, timeout_s=timeout_s)) as chunks:
            await unpack(chunks, Path(target))

    @abstractmethod
    async def read(self, source: str, *, max_bytes: int = 16 * MIB) -> bytes:
        """Return a file's bytes; raises NoSuchPath, or UnsafePath where it is larger."""

    @abstractmethod
    async def put_archive(self, chunks: AsyncIterator[bytes], folder: str, *, timeout_s: float = 600.0) -> None:
        """Unpack a tar stream into ``folder``, which is made: what `put` does with what it packed. Raises as `put`."""

    @abstractmethod
    def get_archive(self, source: str, *, timeout_s: float = 600.0) -> AsyncGenerator[bytes, None]:
        """Yield a tar stream of ``source``, members named from its last part on: what `get` unpacks.

        Raises:
            NoSuchPath: there is no ``source``.
        """

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """Save the file system, such that `restore` and `fork` can come back to it. Memory is not saved."""

    @abstractmethod
    async def restore(self, snapshot_id: str = "") -> None:
        """Start a new life from a snapshot (the last one); calls in flight get `SandboxRestarted`."""

    @abstractmethod
    async def restart(self) -> None:
        """Start a new life: from the last snapshot, else from the image. Calls in flight get `SandboxRestarted`."""

    @abstractmethod
    async def fork(self, *, key: str = "", snapshot_id: str = "") -> Sandbox:
        """Return a new sandbox that starts from a snapshot (default: one made now)."""

    @abstractmethod
    async def renew(self, ttl_s: float | None = None) -> None:
        """Live ``ttl_s`` (default: the specification's) from now on."""

    @abstractmethod
    async def pause(self) -> None:
        """Freeze all processes; idempotent. Leases run on."""

    @abstractmethod
    async def resume(self) -> None:
        """Go on after `pause`; idempotent."""

    @abstractmethod
    async def info(self) -> SandboxInfo:
        """Return what the manager knows of it now."""

    @abstractmethod
    async def events(self, *, after: int = 0) -> list[Event]:
        """Return its events with a number above ``after``, oldest first."""

    @abstractmethod
    async def logs(self, *, num_lines: int = 100) -> str:
        """Return the last lines that its main process wrote."""

    @abstractmethod
    async def delete(self) -> None:
        """End it and remove all of it but its events; idempotent."""

    @abstractmethod
    async def _exec(self, request: ExecRequest) -> ExecResult: ...

    @abstractmethod
    def _stream(
        self, request: ExecRequest, stdin: AsyncIterator[bytes] | None = None
    ) -> AsyncGenerator[Output | ExecResult, None]: ...


def _request(
    command: Command, timeout_s: float, env: Mapping[str, str] | None, cwd: str, stdin: bytes, max_output_bytes: int
) -> ExecRequest:
    try:
        given, named = command if isinstance(command, str) else tuple(command), dict(env or {})
    except (TypeError, ValueError):
        raise BadRequest(
            f"command must be a string, or strings, and env a mapping: not {command!r}, {env!r}."
        ) from None
    return checked_request(ExecRequest(given, timeout_s, named, cwd, stdin, max_output_bytes))


class Sandboxes(Protocol):
    """All sandboxes of one manager. ``async with`` closes it."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def create(self, spec: SandboxSpec, *, key: str = "", owner: str = "", deadline_s: float = 120.0) -> Sandbox:
        """Return a ready sandbox.

        Args:
            spec: what it is.
            key: creating again with the same key returns the same sandbox, however often and at once.
            owner: creations that wait for a place take turns by owner.
            deadline_s: longest wait, queueing included.

        Raises:
            BadSpec, ImageMissing, DaemonUnreachable, DaemonForbidden: at once.
            StartFailed, StartTimeout: it did not become ready; nothing is left.
            Overloaded: no room by the deadline. DiskPressure: no host has free disk. HostUnavailable: no host answers.
        """
        ...

    async def attach(self, sandbox_id: str) -> Sandbox:
        """Return a sandbox that exists; raises SandboxNotFound."""
        ...

    async def list_sandboxes(self, *, owner: str | None = None) -> list[SandboxInfo]:
        """Return those that are not deleted, oldest first."""
        ...

    async def hosts(self) -> list[HostInfo]:
        """Return the Docker hosts."""
        ...

    async def drain(self, host: str, *, on: bool = True) -> None:
        """Give a host no new sandboxes (or again)."""
        ...

    async def events(self, *, after: int = 0) -> list[Event]:
        """Return all events with a number above ``after``, oldest first, 1,000 at most."""
        ...

    async def snapshots(self) -> list[Snapshot]:
        """Return the snapshots that are kept."""
        ...

    async def reap(self) -> list[str]:
        """Remove now what has no right to live: sandboxes whose lease has ended, and containers without a sandbox.

        Their networks and volumes go with them; images stay: see `prune_images`. Returns names.

        Raises:
            DaemonUnreachable, DaemonForbidden, HostUnavailable: no host answers.
        """
        ...

    async def prune_images(self) -> list[str]:
        """Remove now the snapshot images that nobody needs; returns their names.

        Those are the ones of sandboxes that are gone, those that are more than are kept, and those of which no
        snapshot is known. What a sandbox or a fork lives on stays. Raises as `reap`.
        """
        ...

    async def close(self) -> None:
        """Stop managing. Sandboxes live on until their lease ends: the next manager adopts them. Idempotent."""
        ...
