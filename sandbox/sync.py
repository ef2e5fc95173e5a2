"""Sandboxes for code that is not asynchronous, such as an environment's ``step``: each call returns when it is done.

One thread with an event loop does the work, so it also works where the caller's own thread runs a loop (which waits).

>>> with SyncSandboxes() as sandboxes:                                   # doctest: +SKIP
...     box = sandboxes.create(SandboxSpec())
...     box.exec("echo hello").stdout_text
'hello\\n'
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from rollcage.sandbox.base import Sandbox, Sandboxes, Session
from rollcage.sandbox.loop_thread import LoopThread
from rollcage.sandbox.types import SandboxSpec

P = ParamSpec("P")
T = TypeVar("T")


class _Synchronous:
    """Something whose calls are coroutines, and the thread that does them."""

    def __init__(self, loop: LoopThread, inner: Any) -> None:
        self._loop, self._inner = loop, inner


def waiting(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Synchronous, P], T]:
    """Return a call that waits for a coroutine method's result: same arguments, same documentation."""

    @wraps(method)
    def wait(self: _Synchronous, /, *args: P.args, **options: P.kwargs) -> T:
        call: Coroutine[Any, Any, T] = getattr(self._inner, method.__name__)(*args, **options)
        return self._loop.call(call)

    return wait


def iterating(
    method: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[_Synchronous, P], Iterator[T]]:
    """Return a call that yields what an asynchronous generator yields: same arguments, same documentation."""

    @wraps(method)
    def iterate(self: _Synchronous, /, *args: P.args, **options: P.kwargs) -> Iterator[T]:
        items: AsyncGenerator[T, None] = getattr(self._inner, method.__name__)(*args, **options)
        return self._loop.iterate(items)

    return iterate


class SyncSandboxes(_Synchronous):
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
        loop = LoopThread()
        weakref.finalize(self, loop.stop)  # for those who forget to close, at the interpreter's end too
        try:
            loop.sandboxes = loop.call(_opened(open_sandboxes, folder, endpoints))
        except BaseException:
            loop.stop()
            raise
        super().__init__(loop, loop.sandboxes)

    def __enter__(self) -> SyncSandboxes:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def create(self, spec: SandboxSpec, *, key: str = "", owner: str = "", deadline_s: float = 120.0) -> SyncSandbox:
        """See `Sandboxes`."""
        call = self._inner.create(spec, key=key, owner=owner, deadline_s=deadline_s)
        return SyncSandbox(self, self._loop.call(call))

    def attach(self, sandbox_id: str) -> SyncSandbox:
        """See `Sandboxes`."""
        return SyncSandbox(self, self._loop.call(self._inner.attach(sandbox_id)))

    list_sandboxes = waiting(Sandboxes.list_sandboxes)
    hosts = waiting(Sandboxes.hosts)
    drain = waiting(Sandboxes.drain)
    events = waiting(Sandboxes.events)
    snapshots = waiting(Sandboxes.snapshots)
    reap = waiting(Sandboxes.reap)
    prune_images = waiting(Sandboxes.prune_images)

    def close(self) -> None:
        """See `Sandboxes`; calls in flight are cancelled, and the thread ends."""
        self._loop.stop()


class SyncSandbox(_Synchronous):
    """One sandbox; see `rollcage.sandbox.base.Sandbox`, whose calls these are."""

    def __init__(self, owner: SyncSandboxes, sandbox: Sandbox) -> None:
        super().__init__(owner._loop, sandbox)
        self._owner = owner  # which closes when nobody has it any more
        self.id = sandbox.id

    exec = waiting(Sandbox.exec)
    stream = iterating(Sandbox.stream)
    put = waiting(Sandbox.put)
    get = waiting(Sandbox.get)
    read = waiting(Sandbox.read)
    snapshot = waiting(Sandbox.snapshot)
    restore = waiting(Sandbox.restore)
    restart = waiting(Sandbox.restart)
    renew = waiting(Sandbox.renew)
    pause = waiting(Sandbox.pause)
    resume = waiting(Sandbox.resume)
    info = waiting(Sandbox.info)
    events = waiting(Sandbox.events)
    logs = waiting(Sandbox.logs)
    delete = waiting(Sandbox.delete)

    def session(self, *, env: Mapping[str, str] | None = None, cwd: str = "") -> SyncSession:
        """See `Sandbox`."""
        return SyncSession(self._owner, self._loop.call(self._inner.session(env=env, cwd=cwd)))

    def fork(self, *, key: str = "", snapshot_id: str = "") -> SyncSandbox:
        """See `Sandbox`."""
        call = self._inner.fork(key=key, snapshot_id=snapshot_id)
        return SyncSandbox(self._owner, self._loop.call(call))


class SyncSession(_Synchronous):
    """A shell in a sandbox; see `rollcage.sandbox.base.Session`, whose calls these are."""

    def __init__(self, owner: SyncSandboxes, session: Session) -> None:
        super().__init__(owner._loop, session)
        self._owner = owner  # as above

    def __enter__(self) -> SyncSession:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    run = waiting(Session.run)
    close = waiting(Session.close)


async def _opened(
    open_sandboxes: Callable[[], Awaitable[Sandboxes]] | None, folder: Path | str | None, endpoints: tuple[str, ...]
) -> Sandboxes:
    if open_sandboxes is not None:
        return await open_sandboxes()
    from rollcage.sandbox.opening import open_default

    return await open_default(Path(folder) if folder is not None else None, endpoints)
