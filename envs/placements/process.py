"""Placement `process`: each instance in a worker process of its own, which can be killed whatever it does."""

from __future__ import annotations

import asyncio
from typing import Any

from rollcage.envs.placements.base import EnvConfig, EnvDied, EnvTimeout, PlacementError
from rollcage.envs.placements.pool import PooledPlacement, answer_by
from rollcage.envs.placements.worker_process import WorkerProcess, make_request, request, result_of
from rollcage.errors import UserError

_CLOSE_S = 5.0
_POLL_S = 0.002


class ProcessHost:
    """One environment in a worker process; see `rollcage.envs.placements.pool.Host`.

    Args:
        make_args: arguments of the worker's "make" (`make_request`).
    """

    def __init__(self, make_args: dict[str, Any]) -> None:
        self.broken = False
        self._make_args = make_args
        self._worker: WorkerProcess | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answer: asyncio.Future[Any] | None = None

    async def start(self, deadline_s: float) -> None:
        """See `Host.start`."""
        self._loop = asyncio.get_running_loop()
        self._worker = WorkerProcess()
        self._loop.add_reader(self._worker.stdout, self._read)
        self._loop.add_reader(self._worker.stderr, self._read_log)
        await self.ask("make", self._make_args, deadline_s)

    async def ask(self, operation: str, args: dict[str, Any], deadline_s: float) -> Any:
        """See `Host.ask`."""
        worker, loop = self._worker, self._loop
        if worker is None or loop is None:
            raise EnvDied("the worker process has been ended.")
        try:
            frame = request(operation, args, deadline_s)
            self._answer = answer = loop.create_future()
            worker.send(frame)
            if worker.sending:
                loop.add_writer(worker.stdin, self._write)
            return result_of(await answer_by(answer, deadline_s))
        except UserError:
            raise
        except (EnvDied, EnvTimeout) as error:
            self.broken = True
            raise type(error)(f"{error} The worker process: {await self._kill()}") from None
        except BaseException:
            self.broken = True
            raise
        finally:
            self._answer = None

    def _read(self) -> None:
        assert self._worker is not None
        assert self._loop is not None
        error: EnvDied | None = None
        reply: Any = None
        try:
            reply = self._worker.read()
        except EnvDied as died:
            error = died
        if error is None and reply is None:
            return
        if error is not None or self._answer is None:
            self.broken = True  # gone, or it speaks without being asked
            self._loop.remove_reader(self._worker.stdout)
        if self._answer is not None and not self._answer.done():
            if error is not None:
                self._answer.set_exception(error)
            else:
                self._answer.set_result(reply)

    def _read_log(self) -> None:
        assert self._worker is not None
        assert self._loop is not None
        if not self._worker.read_log():
            self._loop.remove_reader(self._worker.stderr)

    def _write(self) -> None:
        assert self._worker is not None
        assert self._loop is not None
        if self._worker.write():
            self._loop.remove_writer(self._worker.stdin)

    async def _kill(self) -> str:
        """End the worker process without blocking the loop; returns how it had ended."""
        worker, loop, self._worker = self._worker, self._loop, None
        if worker is None or loop is None:
            return "ended"
        for descriptor in (worker.stdout, worker.stderr):
            loop.remove_reader(descriptor)
        loop.remove_writer(worker.stdin)
        worker.kill()
        try:
            end_s = loop.time() + _CLOSE_S
            while not worker.gone() and loop.time() < end_s:
                await asyncio.sleep(_POLL_S)
        finally:
            epitaph = worker.end()
        return epitaph

    async def end(self) -> None:
        """See `Host.end`."""
        if self._worker is not None and not self.broken:
            try:
                await self.ask("close", {}, _CLOSE_S)
            except (PlacementError, UserError):
                pass  # a close() that fails or hangs changes nothing: the process is killed now
        self.broken = True
        await self._kill()


class ProcessPlacement(PooledPlacement):
    """A pool of worker processes; each hosts one instance and is reused after `release`.

    A call that passes its deadline, and a worker that crashes or breaks the protocol, cost their own episode: the
    process group is killed and the next `acquire` starts another. Workers end with this process, even by kill -9.

    Raises:
        UserError: the environment cannot be built in another process; the message says what to do.
    """

    def __init__(self, config: EnvConfig, *, num_workers: int | None = None) -> None:
        make_args = make_request(config)
        super().__init__(lambda: ProcessHost(make_args), num_workers)
