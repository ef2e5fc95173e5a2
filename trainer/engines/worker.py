"""The thread's side of the local engine."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollcage.trainer.engines.base import EngineError
from rollcage.trainer.engines.batching import Row, SlotBatch
from rollcage.trainer.types import Generation, Request

ADMIT_SHARE = 16
"""Requests join at once where they are at least one in so many of the running ones."""
MAX_WAIT_STEPS = 8
"""Fewer of them join after so many steps at the latest."""


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way through the engine; ``row`` belongs to the thread."""

    request: Request
    result: asyncio.Future[Generation]
    row: Row | None = None


class Worker:
    """What belongs to the engine's thread alone: the batch, and the requests that run or wait."""

    def __init__(self, batch: SlotBatch, tell: Callable[..., None]) -> None:
        """``tell(callback, *args)`` runs the callback on the event loop."""
        self.batch = batch
        self.waiting: deque[Job] = deque()
        self.ended = False
        self._tell = tell
        self._running: dict[Row, Job] = {}
        self._paused = False
        self._waited_steps = 0

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do before the next command."""
        return self._paused or not (self.waiting or self._running)

    def step(self) -> None:
        """Admit what fits, sample one token of each running request, and hand over those that are done."""
        if self.is_idle or self.ended:
            return
        jobs = [self.waiting.popleft() for _ in range(self._num_to_admit())]
        for job, row in zip(jobs, self.batch.admit([job.request for job in jobs]), strict=True):
            job.row = row
            self._running[row] = job
        results = [
            (self._running.pop(row).result, reason if isinstance(reason, EngineError) else row.generation(reason))
            for row, reason in self.batch.step()
        ]
        if results:
            self._tell(settle_all, results)

    def _num_to_admit(self) -> int:
        """Return how many waiting requests join now.

        The forward pass for their prompts costs as much as a step of the whole batch, so a few requests wait, at most
        `MAX_WAIT_STEPS` steps, until there are enough of them to share it.
        """
        num_running = len(self.batch.rows)
        num = min(self.batch.num_slots - num_running, len(self.waiting))
        self._waited_steps = self._waited_steps + 1 if num else 0
        if num * ADMIT_SHARE < num_running and self._waited_steps <= MAX_WAIT_STEPS:
            return 0
        self._waited_steps = 0
        return num

    def cancel(self, job: Job) -> None:
        """Take a request out of the engine."""
        self._take_out(job)

    def abort(self, job: Job) -> None:
        """Take a request out of the engine and hand over what it has made."""
        self._tell(settle, job.result, self._take_out(job))

    def pause(self, paused: bool) -> None:
        """Make no steps, or go on."""
        self._paused = paused

    def end(self) -> None:
        """Let the thread end."""
        self.ended = True

    def call(self, action: Callable[[Worker], None], done: asyncio.Future[None]) -> None:
        """Run ``action`` and tell whoever waits for it."""
        try:
            action(self)
        except EngineError as error:
            self._tell(settle, done, error)
        else:
            self._tell(settle, done, None)

    def _take_out(self, job: Job) -> Generation:
        if job in self.waiting:
            self.waiting.remove(job)
        if job.row is None:
            return Generation([], [], [], "abort")
        if job.row in self._running:
            del self._running[job.row]
            self.batch.remove(job.row)
        return job.row.generation("abort")


def settle(future: asyncio.Future[Any], result: Any) -> None:
    """Set a future's result or error, unless its caller has gone."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def settle_all(results: list[tuple[asyncio.Future[Generation], Generation | EngineError]]) -> None:
    """Settle each future with its result."""
    for future, result in results:
        settle(future, result)
