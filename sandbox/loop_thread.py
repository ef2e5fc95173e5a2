"""A thread with an event loop, for callers that wait for each call: what `rollcage.sandbox.sync` stands on."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, TypeVar

from rollcage.sandbox.base import Sandboxes
from rollcage.sandbox.errors import SandboxUnavailable

CANCEL_S = 30.0
"""Longest wait for a call that was cancelled to end."""

T = TypeVar("T")


class LoopThread:
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
        except SandboxUnavailable:
            call.close()
            raise
        try:
            return done.result()
        except BaseException:
            if not done.done():  # it was this thread that was interrupted
                self._schedule(lambda: tasks[0].cancel())
                concurrent.futures.wait([done], timeout=CANCEL_S)
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
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
            raise SandboxUnavailable("these sandboxes were opened before a fork: open them again in this process.")
        if threading.current_thread() is self._thread:
            text = "a call from inside another one would wait for ever: use the asynchronous interface."
            raise SandboxUnavailable(text)
        with self._lock:  # what is scheduled before the loop's end is started, and then told its fate
            if self._is_stopped:
                raise SandboxUnavailable("these sandboxes are closed.")
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
        done.set_exception(SandboxUnavailable("the call was cancelled: these sandboxes were closed meanwhile."))
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())


async def _next(items: AsyncIterator[T]) -> T | None:
    return await anext(items, None)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    async with aclosing(items):
        pass
