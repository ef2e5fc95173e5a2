"""Warm pool: sandboxes that wait, ready, for somebody who asks for just such a one."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from rollcage.sandbox.errors import SandboxError
from rollcage.sandbox.types import SandboxSpec

T = TypeVar("T")


class Keeper(Protocol):
    """What the pool needs of the manager."""

    async def start(self, spec: SandboxSpec) -> str:
        """Start a sandbox that belongs to nobody and return its id once it is ready.

        Raises:
            SandboxError: it did not become ready. Then, and when the call is cancelled, nothing of it is left.
        """
        ...

    async def check(self, sandbox_id: str) -> bool:
        """Return whether it is alive and answers; by a deadline."""
        ...

    async def drop(self, sandbox_id: str) -> None:
        """Remove it, or see to it that it goes later; idempotent."""
        ...


class Pool:
    """Idle sandboxes by `SandboxSpec.pool_hash`.

    Members that are idle, being started, checked or dropped are together never more than the target (only where a
    target is lowered, or a member adopted, more remain until the surplus is gone). A start that fails is tried again
    after a jittered pause that doubles, with one start at a time until one succeeds.

    Args:
        keeper: the manager.
        max_starts: parallel starts per specification.
        retry_s: pause after the first failed start.
        max_retry_s: longest pause, before the jitter.
        check_timeout_s: a member that has not answered by then is not handed out.
        adopt_s: members of an earlier manager wait so long for somebody to set a target; then they are dropped.
        rng: for the jitter.
    """

    def __init__(
        self,
        keeper: Keeper,
        *,
        max_starts: int = 4,
        retry_s: float = 1.0,
        max_retry_s: float = 60.0,
        check_timeout_s: float = 2.0,
        adopt_s: float = 60.0,
        rng: random.Random | None = None,
    ) -> None:
        self._keeper, self._max_starts, self._check_timeout_s = keeper, max_starts, check_timeout_s
        self._adopt_s = adopt_s
        self._retry_s, self._max_retry_s, self._rng = retry_s, max_retry_s, rng or random.Random()
        self._shelves: dict[str, _Shelf] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._is_closed = self._drains = False

    def set_target(self, spec: SandboxSpec, target: int) -> None:
        """Keep ``target`` sandboxes like ``spec`` ready from now on; too many are dropped. Returns at once."""
        shelf = self._shelf(spec)
        shelf.target = max(0, target)
        shelf.cancel_patience()
        self._level(shelf)

    def adopt(self, spec: SandboxSpec, sandbox_id: str) -> None:
        """Take in an idle member of an earlier manager; where the target is met, one is dropped.

        Where there is no target yet, there may soon be one: it waits.
        """
        shelf = self._shelf(spec)
        shelf.idle.append(sandbox_id)
        if not shelf.target and shelf.patience is None and not self._is_closed:
            shelf.patience = asyncio.get_running_loop().call_later(self._adopt_s, self.set_target, spec, 0)
        self._level(shelf)

    async def claim(self, spec: SandboxSpec) -> str | None:
        """Take a member that has just been checked and return its id; None where there is none: create one then.

        Each member is handed out once. A claim that is cancelled leaves the member in the pool.
        """
        shelf = self._shelves.get(spec.pool_hash)
        while shelf is not None and shelf.idle and not self._is_closed:
            sandbox_id = shelf.idle.popleft()
            shelf.checking.add(sandbox_id)
            try:
                is_healthy = await self._check(sandbox_id)
            except asyncio.CancelledError:
                if sandbox_id in shelf.checking:
                    shelf.checking.remove(sandbox_id)
                    shelf.idle.appendleft(sandbox_id)
                    self._level(shelf)
                raise
            if sandbox_id not in shelf.checking:
                continue  # forgotten meanwhile
            shelf.checking.remove(sandbox_id)
            if is_healthy:
                self._level(shelf)
                return sandbox_id
            self._drop(shelf, sandbox_id)
        return None

    def forget(self, sandbox_id: str) -> None:
        """A member has died or is gone, as the manager saw: drop it and start another. Nothing for other ids."""
        for shelf in self._shelves.values():
            if sandbox_id in shelf.idle:
                shelf.idle.remove(sandbox_id)
            elif sandbox_id in shelf.checking:
                shelf.checking.remove(sandbox_id)
            else:
                continue
            self._drop(shelf, sandbox_id)

    def idle(self, spec: SandboxSpec) -> list[str]:
        """Return the members that are ready, oldest first."""
        shelf = self._shelves.get(spec.pool_hash)
        return [] if shelf is None else list(shelf.idle)

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return, by pool hash, how many members are ready, and the target."""
        return {pool_hash: (len(shelf.idle), shelf.target) for pool_hash, shelf in self._shelves.items()}

    async def close(self, *, drain: bool = True, timeout_s: float = 30.0) -> None:
        """Stop refilling; with ``drain`` drop all members, else leave the ready ones alive. Idempotent.

        Members that are being checked are not handed out any more. What has not ended after ``timeout_s`` is cancelled.
        """
        self._is_closed, self._drains = True, drain
        for shelf in self._shelves.values():
            shelf.idle.extend(shelf.checking)
            shelf.checking.clear()
            shelf.cancel_retry()
            shelf.cancel_patience()
            for start in list(shelf.starts):
                shelf.cancel_start(start)
            while shelf.idle and drain:
                self._drop(shelf, shelf.idle.popleft())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            while self._tasks and loop.time() < deadline:
                await asyncio.wait(list(self._tasks), timeout=deadline - loop.time())
        finally:
            for task in list(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(list(self._tasks))

    def _shelf(self, spec: SandboxSpec) -> _Shelf:
        return self._shelves.setdefault(spec.pool_hash, _Shelf(spec))

    def _level(self, shelf: _Shelf) -> None:
        """Bring a shelf nearer to its target: whenever something has changed."""
        if self._is_closed or shelf.patience is not None:
            return
        while shelf.num_staying > shelf.target and (shelf.starts or shelf.idle):
            if shelf.starts:
                shelf.cancel_start(next(reversed(shelf.starts)))
            else:
                self._drop(shelf, shelf.idle.popleft())
        max_starts = 1 if shelf.num_failures else self._max_starts
        while shelf.retry is None and shelf.num_staying + len(shelf.leaving) < shelf.target:
            if len(shelf.starts) >= max_starts:
                break
            start = self._spawn(self._keeper.start(shelf.spec), "start a warm sandbox")
            shelf.starts[start] = None
            start.add_done_callback(lambda start: self._start_ended(shelf, start))
        if not shelf.target and not shelf.num_staying and not shelf.leaving:
            shelf.cancel_retry()
            self._shelves.pop(shelf.spec.pool_hash, None)

    def _start_ended(self, shelf: _Shelf, start: asyncio.Task[str]) -> None:
        was_called_off = start in shelf.leaving
        shelf.starts.pop(start, None)
        shelf.leaving.discard(start)
        if not start.cancelled() and start.exception() is None:
            shelf.num_failures = 0
            shelf.cancel_retry()
            shelf.idle.append(start.result())
            if self._drains:  # it was too late to call it off
                self._drop(shelf, shelf.idle.pop())
        elif not was_called_off and shelf.retry is None and not self._is_closed:
            pause_s = min(self._max_retry_s, self._retry_s * 2.0 ** min(shelf.num_failures, 30))
            shelf.num_failures += 1
            loop = asyncio.get_running_loop()
            shelf.retry = loop.call_later(pause_s * self._rng.uniform(0.75, 1.25), self._start_again, shelf)
        self._level(shelf)

    def _start_again(self, shelf: _Shelf) -> None:
        shelf.retry = None
        self._level(shelf)

    async def _check(self, sandbox_id: str) -> bool:
        try:
            async with asyncio.timeout(self._check_timeout_s):
                return await self._keeper.check(sandbox_id)
        except (SandboxError, TimeoutError):
            return False

    def _drop(self, shelf: _Shelf, sandbox_id: str) -> None:
        def dropped(_: asyncio.Task[None]) -> None:
            shelf.leaving.discard(sandbox_id)
            self._level(shelf)

        shelf.leaving.add(sandbox_id)
        self._spawn(self._keeper.drop(sandbox_id), f"drop {sandbox_id}").add_done_callback(dropped)

    def _spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, SandboxError):  # nobody waits for it: let the loop tell
            task.get_loop().call_exception_handler({"message": task.get_name(), "exception": error, "task": task})


@dataclass(slots=True)
class _Shelf:
    """The members for one specification. ``leaving``: starts that were called off, and members that are dropped."""

    spec: SandboxSpec
    target: int = 0
    idle: deque[str] = field(default_factory=deque)
    checking: set[str] = field(default_factory=set)
    starts: dict[asyncio.Task[str], None] = field(default_factory=dict)
    leaving: set[asyncio.Task[str] | str] = field(default_factory=set)
    num_failures: int = 0
    retry: asyncio.TimerHandle | None = None
    patience: asyncio.TimerHandle | None = None

    @property
    def num_staying(self) -> int:
        return len(self.idle) + len(self.checking) + len(self.starts)

    def cancel_start(self, start: asyncio.Task[str]) -> None:
        del self.starts[start]
        self.leaving.add(start)
        start.cancel()

    def cancel_patience(self) -> None:
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None

    def cancel_retry(self) -> None:
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None
