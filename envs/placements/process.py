"""Placement `process`: each instance in a worker process of its own, which can be killed whatever it does."""

from __future__ import annotations

import asyncio
from typing import Any

from rollcage.envs.placements.base import EnvConfig, EnvDied, PlacementError
from rollcage.envs.placements.pool import PooledPlacement
from rollcage.envs.placements.restoring import restarting
from rollcage.envs.placements.worker_host import CLOSE_S, WorkerHost
from rollcage.envs.placements.worker_process import WorkerProcess, make_request

_POLL_S = 0.002


class ProcessHost(WorkerHost):
    """One environment in a worker process; see `WorkerHost`."""

    def __init__(self, make_args: dict[str, Any]) -> None:
        super().__init__(make_args)
        self._worker: WorkerProcess | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._epitaph = "ended"

    async def _open(self, deadline_s: float) -> None:
        await self._kill()
        self._loop = asyncio.get_running_loop()
        self._worker = WorkerProcess()
        self._loop.add_reader(self._worker.stdout, self._read)
        self._loop.add_reader(self._worker.stderr, self._read_log)

    def _send(self, frame: bytes) -> None:
        if self._worker is None or self._loop is None:
            raise EnvDied("the worker process has been ended.")
        self._worker.send(frame)
        if self._worker.sending:
            self._loop.add_writer(self._worker.stdin, self._write)

    def _read(self) -> None:
        assert self._worker is not None
        assert self._loop is not None
        outcome: Any
        try:
            outcome = self._worker.read()
        except EnvDied as died:
            outcome = died
        if outcome is not None:
            self._settle(outcome)
            if self.broken:
                self._loop.remove_reader(self._worker.stdout)

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

    async def _kill(self) -> None:
        """End the worker process without blocking the loop."""
        worker, loop, self._worker = self._worker, self._loop, None
        if worker is None or loop is None:
            return
        for descriptor in (worker.stdout, worker.stderr):
            loop.remove_reader(descriptor)
        loop.remove_writer(worker.stdin)
        worker.kill()
        try:
            end_s = loop.time() + CLOSE_S
            while not worker.gone() and loop.time() < end_s:
                await asyncio.sleep(_POLL_S)
        finally:
            self._epitaph = worker.end()

    def _buried(self, error: PlacementError) -> PlacementError:
        return type(error)(f"{error} The worker process: {self._epitaph}")


class ProcessPlacement(PooledPlacement):
    """A pool of worker processes; each hosts one instance and is reused after `release`.

    A call that passes its deadline, and a worker that crashes or breaks the protocol, cost their own episode: the
    process group is killed and the next `acquire` starts another. Workers end with this process, even by kill -9.

    Args:
        config: which environment.
        num_workers: at most so many live at once, later callers wait; None for no limit.
        restart: "fail", or "restore": an episode outlives its worker; see `RestoringHost`.

    Raises:
        UserError: the environment cannot be built in another process; the message says what to do.
    """

    def __init__(self, config: EnvConfig, *, num_workers: int | None = None, restart: str = "fail") -> None:
        make_args = make_request(config)
        super().__init__(restarting(restart, lambda: ProcessHost(make_args)), num_workers)
