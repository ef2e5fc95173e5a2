"""Sandboxes for code that is not asynchronous, such as an environment's ``step``: each call returns when it is done.

One thread with an event loop does the work, so it also works where the caller's own thread runs a loop (which waits).

>>> with SyncSandboxes() as sandboxes:                                   # doctest: +SKIP
...     box = sandboxes.create(SandboxSpec())
...     box.exec("echo hello").stdout_text
'hello\\n'
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType

from rollcage.sandbox.base import Command, Sandbox, Sandboxes, Session
from rollcage.sandbox.loop_thread import LoopThread
from rollcage.sandbox.types import MIB, Event, ExecResult, HostInfo, Output, SandboxInfo, SandboxSpec, Snapshot


class SyncSandboxes:
    """All sandboxes of one manager; see `rollcage.sandbox.base.Sandboxes`, whose calls these are.

    After a fork it is the parent's alone: in the child every call raises SandboxError, and `close` does nothing.
    Ctrl-C cancels the call that waits.

    Args:
        open_sandboxes: starts the manager or the client, in the thread; the default uses the service that runs for
            ``folder``, else a manager in this process.
        folder: the manager's state; the default is this user's.
        endpoints: Docker daemons of a manager in this process; empty: the one that the ``docker`` command uses.
    """

    def __init__(
        self,
        open_sandboxes: Callable[[], Awaitable[Sandboxes]] | None = None,
        *,
        folder: Path | str | None = None,
        endpoints: tuple[str, ...] = (),
    ) -> None:
        self._loop = LoopThread()
        weakref.finalize(self, self._loop.stop)  # for those who forget to close, at the interpreter's end too
        try:
            self._sandboxes = self._loop.sandboxes = self._loop.call(_opened(open_sandboxes, folder, endpoints))
        except BaseException:
            self._loop.stop()
            raise

    def __enter__(self) -> SyncSandboxes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def create(self, spec: SandboxSpec, *, key: str = "", owner: str = "", deadline_s: float = 120.0) -> SyncSandbox:
        """See `Sandboxes`."""
        call = self._sandboxes.create(spec, key=key, owner=owner, deadline_s=deadline_s)
        return SyncSandbox(self, self._loop, self._loop.call(call))

    def attach(self, sandbox_id: str) -> SyncSandbox:
        """See `Sandboxes`."""
        return SyncSandbox(self, self._loop, self._loop.call(self._sandboxes.attach(sandbox_id)))

    def list_sandboxes(self, *, owner: str | None = None) -> list[SandboxInfo]:
        """See `Sandboxes`."""
        return self._loop.call(self._sandboxes.list_sandboxes(owner=owner))

    def hosts(self) -> list[HostInfo]:
        """See `Sandboxes`."""
        return self._loop.call(self._sandboxes.hosts())

    def drain(self, host: str, *, on: bool = True) -> None:
        """See `Sandboxes`."""
        self._loop.call(self._sandboxes.drain(host, on=on))

    def events(self, *, after: int = 0) -> list[Event]:
        """See `Sandboxes`."""
        return self._loop.call(self._sandboxes.events(after=after))

    def snapshots(self) -> list[Snapshot]:
        """See `Sandboxes`."""
        return self._loop.call(self._sandboxes.snapshots())

    def reap(self) -> list[str]:
        """See `Sandboxes`."""
        return self._loop.call(self._sandboxes.reap())

    def close(self) -> None:
        """See `Sandboxes`; calls in flight are cancelled, and the thread ends."""
        self._loop.stop()


class SyncSandbox:
    """One sandbox; see `rollcage.sandbox.base.Sandbox`."""

    def __init__(self, owner: SyncSandboxes, loop: LoopThread, sandbox: Sandbox) -> None:
        self._owner = owner  # which closes when nobody has it any more
        self._loop, self._sandbox, self.id = loop, sandbox, sandbox.id

    def exec(
        self,
        command: Command,
        *,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        stdin: bytes = b"",
        max_output_bytes: int = MIB,
    ) -> ExecResult:
        """See `Sandbox`."""
        call = self._sandbox.exec(
            command, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin, max_output_bytes=max_output_bytes
        )
        return self._loop.call(call)

    def stream(
        self,
        command: Command,
        *,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        stdin: bytes = b"",
        max_output_bytes: int = MIB,
    ) -> Iterator[Output | ExecResult]:
        """See `Sandbox`."""
        items = self._sandbox.stream(
            command, timeout_s=timeout_s, env=env, cwd=cwd, stdin=stdin, max_output_bytes=max_output_bytes
        )
        return self._loop.iterate(items)

    def session(self, *, env: Mapping[str, str] | None = None, cwd: str = "") -> SyncSession:
        """See `Sandbox`."""
        return SyncSession(self._owner, self._loop, self._loop.call(self._sandbox.session(env=env, cwd=cwd)))

    def put(self, source: Path | bytes, target: str, *, timeout_s: float = 600.0) -> None:
        """See `Sandbox`."""
        self._loop.call(self._sandbox.put(source, target, timeout_s=timeout_s))

    def get(self, source: str, target: Path, *, timeout_s: float = 600.0) -> None:
        """See `Sandbox`."""
        self._loop.call(self._sandbox.get(source, target, timeout_s=timeout_s))

    def read(self, source: str, *, max_bytes: int = 16 * MIB) -> bytes:
        """See `Sandbox`."""
        return self._loop.call(self._sandbox.read(source, max_bytes=max_bytes))

    def snapshot(self) -> Snapshot:
        """See `Sandbox`."""
        return self._loop.call(self._sandbox.snapshot())

    def restore(self, snapshot_id: str = "") -> None:
        """See `Sandbox`."""
        self._loop.call(self._sandbox.restore(snapshot_id))

    def fork(self, *, key: str = "", snapshot_id: str = "") -> SyncSandbox:
        """See `Sandbox`."""
        forked = self._loop.call(self._sandbox.fork(key=key, snapshot_id=snapshot_id))
        return SyncSandbox(self._owner, self._loop, forked)

    def renew(self, ttl_s: float | None = None) -> None:
        """See `Sandbox`."""
        self._loop.call(self._sandbox.renew(ttl_s))

    def pause(self) -> None:
        """See `Sandbox`."""
        self._loop.call(self._sandbox.pause())

    def resume(self) -> None:
        """See `Sandbox`."""
        self._loop.call(self._sandbox.resume())

    def info(self) -> SandboxInfo:
        """See `Sandbox`."""
        return self._loop.call(self._sandbox.info())

    def events(self, *, after: int = 0) -> list[Event]:
        """See `Sandbox`."""
        return self._loop.call(self._sandbox.events(after=after))

    def logs(self, *, num_lines: int = 100) -> str:
        """See `Sandbox`."""
        return self._loop.call(self._sandbox.logs(num_lines=num_lines))

    def delete(self) -> None:
        """See `Sandbox`."""
        self._loop.call(self._sandbox.delete())


class SyncSession:
    """A shell in a sandbox; see `rollcage.sandbox.base.Session`."""

    def __init__(self, owner: SyncSandboxes, loop: LoopThread, session: Session) -> None:
        self._owner, self._loop, self._session = owner, loop, session

    def __enter__(self) -> SyncSession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MIB) -> ExecResult:
        """See `Session`."""
        return self._loop.call(self._session.run(command, timeout_s=timeout_s, max_output_bytes=max_output_bytes))

    def close(self) -> None:
        """See `Session`."""
        self._loop.call(self._session.close())


async def _opened(
    open_sandboxes: Callable[[], Awaitable[Sandboxes]] | None, folder: Path | str | None, endpoints: tuple[str, ...]
) -> Sandboxes:
    if open_sandboxes is not None:
        return await open_sandboxes()
    from rollcage.sandbox.opening import open_default

    return await open_default(Path(folder) if folder is not None else None, endpoints)
