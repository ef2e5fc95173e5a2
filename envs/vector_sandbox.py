"""The environments of a vector environment in a container each: a placement, driven by a thread with an event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from rollcage.envs.placements import make_placement
from rollcage.envs.placements.base import EnvConfig, PlacementError
from rollcage.envs.placements.pool import Host, PooledPlacement
from rollcage.envs.vector_backends import RemoteEnvs
from rollcage.errors import UserError
from rollcage.sandbox.loop_thread import LoopThread


class SandboxEnvs(RemoteEnvs):
    """Environments in containers; see `rollcage.envs.placements.make_placement`.

    Where nobody closes them they end with this object, or with the interpreter.
    """

    def __init__(self, config: EnvConfig, num_envs: int, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        placement = make_placement("sandbox", config)
        assert isinstance(placement, PooledPlacement)
        self._placement, self._hosts = placement, dict[int, Host]()
        self._thread = _SharedThread.borrow()
        self._forgotten = weakref.finalize(self, _end_forgotten, self._thread, placement)
        super().__init__(num_envs)

    def _ask(self, requests: Mapping[int, tuple[str, dict[str, Any]]]) -> dict[int, Any]:
        """See `RemoteEnvs._ask`."""
        return self._thread.call(self._ask_all(requests))

    async def _ask_all(self, requests: Mapping[int, tuple[str, dict[str, Any]]]) -> dict[int, Any]:
        missing = [i for i in requests if i not in self._hosts]
        failures = dict(zip(missing, await asyncio.gather(*map(self._build, missing)), strict=True))
        for failure in failures.values():
            if isinstance(failure, UserError):
                raise failure
        ready = [i for i in requests if i in self._hosts]
        answers = await asyncio.gather(*(self._ask_one(i, *requests[i]) for i in ready))
        return {**failures, **dict(zip(ready, answers, strict=True))}

    async def _build(self, i: int) -> PlacementError | UserError | None:
        try:
            self._hosts[i] = await self._placement.take(self._deadline_s)
        except (PlacementError, UserError) as error:
            return error
        return None

    async def _ask_one(self, i: int, operation: str, args: dict[str, Any]) -> Any:
        host = self._hosts[i]
        try:
            return await host.ask(operation, args, self._deadline_s)
        except (PlacementError, UserError) as error:
            return error
        finally:
            if host.broken:
                del self._hosts[i]
                await self._placement.give_back(host)

    def _renew(self, i: int) -> None:
        """See `RemoteEnvs._renew`: what broke has been given up already."""

    def close(self) -> None:
        """See `Backend.close`."""
        if self._forgotten.detach() is not None:
            _end(self._thread, self._placement)


class _SharedThread:
    """The thread of all vector environments in this process: their sandboxes have one manager, which is in its loop."""

    lock = threading.RLock()
    thread: LoopThread | None = None
    num_users = 0

    @classmethod
    def borrow(cls) -> LoopThread:
        """Return it; the first user starts it."""
        with cls.lock:
            if cls.thread is None or not cls.thread.is_mine:  # after a fork it is the parent's
                cls.thread, cls.num_users = LoopThread(), 0
            cls.num_users += 1
            return cls.thread

    @classmethod
    def give_back(cls, thread: LoopThread) -> None:
        """Be done with it; the last user ends it."""
        with cls.lock:
            cls.num_users -= 1
            if cls.num_users == 0:
                cls.thread = None
                thread.stop()


def _end(thread: LoopThread, placement: PooledPlacement) -> None:
    if not thread.is_mine:
        return
    try:
        thread.call(placement.close())
    finally:
        _SharedThread.give_back(thread)


def _end_forgotten(thread: LoopThread, placement: PooledPlacement) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        _end(thread, placement)
    else:  # garbage was collected in the midst of a loop, perhaps in this very thread's, which cannot wait for itself
        threading.Thread(target=_end, args=(thread, placement)).start()
