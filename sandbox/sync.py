"""Sandboxes for code that is not asynchronous, such as an environment's ``step``: each call returns when it is done.

One thread with an event loop does the work, so it also works where the caller's own thread runs a loop (which waits).

>>> with SyncSandboxes() as sandboxes:                                   # doctest: +SKIP
...     box = sandboxes.create(SandboxSpec())
...     box.exec("echo hello").stdout_text
'hello\\n'
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from rollcage.sandbox.base import Command, Sandbox, Sandboxes, Session
from rollcage.sandbox.errors import SandboxError
from rollcage.sandbox.types import MIB, Event, ExecResult, HostInfo, Output, SandboxInfo, SandboxSpec, Snapshot

CANCEL_S = 30.0
"""Longest wait for a call that was cancelled to end."""

T = TypeVar("T")


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
        self._loop = _LoopThread()
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

    def __init__(self, owner: SyncSandboxes, loop: _LoopThread, sandbox: Sandbox) -> None:
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

    def __init__(self, owner: SyncSandboxes, loop: _LoopThread, session: Session) -> None:
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


class _LoopThread:
    """A thread with an event loop, and the sandboxes that live in it."""

    def __init__(self) -> None:
        self.sandboxes: Sandboxes | None = None
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._lock, self._is_stopped = threading.Lock(), False
        self._failure: BaseException | None = None
        self._calls: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name="rollcage-sandboxes", daemon=True)
        self._thread.start()

    @property
    def is_mine(self) -> bool:
        """Whether the thread is in this process, and not only in the one that it was forked from."""
        return self._pid == os.getpid()

    def call(self, call: Coroutine[Any, Any, T]) -> T:
        """Return what a coroutine returns, once it has; an interrupt cancels it and waits until it has ended."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            task = self._loop.create_task(call)
            tasks.append(task)
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
            task.add_done_callback(lambda task: _tell(task, done))

        try:
            self._schedule(start)
        except SandboxError:
            call.close()
            raise
        try:
            return done.result()
        except BaseException:
            if not done.done():  # it was this thread that was interrupted
                self._schedule(lambda: tasks[0].cancel())
                concurrent.futures.wait([done], timeout=CANCEL_S)
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an asynchronous generator; leaving early closes it."""
        try:
            while (item := self.call(_next(items))) is not None:
                yield item
        finally:
            self.call(_close(items))

    def stop(self) -> None:
        """Cancel what runs, close the sandboxes and end the thread; idempotent. Raises what closing raised."""
        if not self.is_mine:
            return
        with self._lock:
            if not self._is_stopped:
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._is_stopped = True
        self._thread.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _schedule(self, callback: Callable[[], object]) -> None:
        if not self.is_mine:
            raise SandboxError("these sandboxes were opened before a fork: open them again in this process.")
        if threading.current_thread() is self._thread:
            raise SandboxError("a call from inside another one would wait for ever: use the asynchronous interface.")
        with self._lock:  # what is scheduled before the loop's end is started, and then told its fate
            if self._is_stopped:
                raise SandboxError("these sandboxes are closed.")
            self._loop.call_soon_threadsafe(callback)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._end(self._calls)
            if self.sandboxes is not None:
                self._loop.run_until_complete(self.sandboxes.close())
        except BaseException as error:  # noqa: BLE001  # told by `stop`, in the thread that called it
            self._failure = error
        finally:
            self._end(asyncio.all_tasks(self._loop))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def _end(self, tasks: set[asyncio.Task[Any]]) -> None:
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(set(tasks), timeout=CANCEL_S))


def _tell(task: asyncio.Task[T], done: concurrent.futures.Future[T]) -> None:
    if task.cancelled():
        done.set_exception(SandboxError("the call was cancelled: these sandboxes were closed meanwhile."))
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)


async def _close(items: AsyncIterator[Any]) -> None:
    async with aclosing(items):  # type: ignore[type-var]  # `stream` is a generator
        pass
