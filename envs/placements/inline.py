"""Placement `inline`: each instance in a thread of this process. Cheap, and enough for environments that behave."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from rollcage.envs.placements.base import EnvConfig, EnvRaised
from rollcage.envs.placements.frames import plain
from rollcage.envs.placements.instance import Instance, describe_error
from rollcage.envs.placements.pool import PooledPlacement, answer_by
from rollcage.envs.registration import find_spec, make
from rollcage.errors import UserError

_CLOSE_S = 5.0  # for an environment's own close()
_ABANDON_S = 0.2  # for one that has missed a deadline to come back after all
_POLL_S = 0.001
_PLAIN = frozenset((str, int, float, bool, type(None)))

_Job = tuple[str, Mapping[str, Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


def _settle(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return  # its deadline has passed, or its caller has gone
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)


def _as_sent(result: Any) -> Any:
    """Return what a worker process would have sent: a caller must not see where the environment runs."""
    if isinstance(result, tuple) and result and isinstance(info := result[-1], dict):
        if all(type(value) in _PLAIN for value in info.values()):
            return result
        return (*result[:-1], plain(info))
    return result if type(result) in _PLAIN else plain(result)


def _serve(config: EnvConfig, jobs: SimpleQueue[_Job | None]) -> None:
    """Do the jobs of one host, in its thread, until None comes."""
    instance: Instance | None = None
    while (job := jobs.get()) is not None:
        operation, args, loop, answer = job
        result: Any = None
        error: BaseException | None = None
        try:
            if operation == "make":
                instance = Instance(make(config.env_id, **config.kwargs))
            else:
                result = _as_sent(getattr(instance, operation)(**args))
        except BaseException as raised:  # noqa: BLE001  (the boundary: whatever an environment raises is data)
            kind, message = describe_error(operation, raised)
            error = UserError(message) if kind == "user" else EnvRaised(message)
        try:
            loop.call_soon_threadsafe(_settle, answer, result, error)
        except RuntimeError:
            break  # the loop is closed: nobody waits any more
        del job, result, error, answer
    if instance is not None:
        with contextlib.suppress(BaseException):  # nobody waits any more for what close() might say
            instance.close()


class ThreadHost:
    """One environment in a daemon thread of its own; see `Host`.

    Args:
        config: which environment.
        abandon: called where the thread had to be left behind.
    """

    def __init__(self, config: EnvConfig, abandon: Callable[[], None]) -> None:
        self.broken = False
        self._abandon = abandon
        self._hangs = self._ended = False
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=_serve, args=(config, self._jobs), name=f"rollcage-env-{config.env_id}", daemon=True
        )
        weakref.finalize(self, self._jobs.put, None)  # a host that nobody ended takes its thread along

    async def start(self, deadline_s: float) -> None:
        """See `Host.start`."""
        self._thread.start()
        await self.ask("make", {}, deadline_s)

    async def ask(self, operation: str, args: Mapping[str, Any], deadline_s: float) -> Any:
        """See `Host.ask`."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._jobs.put((operation, args, loop, answer))
        try:
            return await answer_by(answer, deadline_s)
        except UserError:
            raise
        except EnvRaised:
            self.broken = True
            raise
        except BaseException:
            self.broken = self._hangs = True
            raise

    async def end(self) -> None:
        """See `Host.end`: a thread that hangs is abandoned, and ends by itself if ever its environment returns."""
        if self._ended or not self._thread.ident:
            return
        self._ended = True
        self._jobs.put(None)
        loop = asyncio.get_running_loop()
        end_s = loop.time() + (_ABANDON_S if self._hangs else _CLOSE_S)
        while self._thread.is_alive() and loop.time() < end_s:
            await asyncio.sleep(_POLL_S)
        if self._thread.is_alive():
            self._abandon()


class InlinePlacement(PooledPlacement):
    """Each instance in a daemon thread of this process, which is reused after `release`.

    Nothing that an environment does by waiting can block the loop: past its deadline the call raises `EnvTimeout` and
    the thread is abandoned. Not covered, and a reason for `process`: Python cannot kill a thread, so an abandoned one
    keeps its memory until it returns; code that computes without ever giving up the interpreter's lock (one huge
    ``int`` power, a regular expression that explodes) stops the whole process; and a crash takes it along.

    Attributes:
        num_abandoned: threads left behind so far.
    """

    def __init__(self, config: EnvConfig, *, num_workers: int | None = None) -> None:
        find_spec(config.env_id)  # an unknown id is the caller's mistake, not a failed episode
        self.num_abandoned = 0
        super().__init__(lambda: ThreadHost(config, self._count_abandoned), num_workers)

    def _count_abandoned(self) -> None:
        self.num_abandoned += 1
