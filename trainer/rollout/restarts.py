"""Engine replicas that have died: started anew, after pauses that grow, as often as the budget allows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from rollcage.errors import RollcageError
from rollcage.recorder import Recorder
from rollcage.trainer.engines.base import Engine, Restartable

_FIRST_PAUSE_S = 1.0


class Restarts:
    """Restarts dead replicas in the background.

    Args:
        engines: by index.
        budget: restarts of one replica in a row, a failed attempt counted too; one that serves a request begins anew.
        back: awaited with the index of a replica that lives again; an error of it is a failed attempt too.
        recorder: gets the counter ``engine_restarts`` and the events ``engine_restarted`` and ``engine_lost``.
    """

    def __init__(
        self, engines: Mapping[int, Engine], *, budget: int, back: Callable[[int], Awaitable[None]], recorder: Recorder
    ) -> None:
        self._engines, self._budget, self._back, self._recorder = engines, budget, back, recorder
        self._num_attempts = dict.fromkeys(engines, 0)
        self._tasks: dict[int, asyncio.Task[None]] = {}

    @property
    def is_any_under_way(self) -> bool:
        """Whether a replica may still come back."""
        return bool(self._tasks)

    def begin(self, index: int) -> None:
        """Restart a replica that has died, where its kind can and its budget allows."""
        if self._budget > 0 and isinstance(self._engines[index], Restartable):
            self._tasks[index] = asyncio.create_task(self._restart(index), name=f"restart of engine {index}")

    def served(self, index: int) -> None:
        """Note that a replica is well."""
        self._num_attempts[index] = 0

    async def wait(self) -> None:
        """Wait until a replica that was being restarted has come back, or is given up."""
        await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)

    async def close(self) -> None:
        """Break off; idempotent."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _restart(self, index: int) -> None:
        engine = self._engines[index]
        assert isinstance(engine, Restartable)
        message = ""
        try:
            while self._num_attempts[index] < self._budget:
                await asyncio.sleep(_FIRST_PAUSE_S * 2 ** self._num_attempts[index])
                self._num_attempts[index] += 1
                try:
                    await engine.restart()
                    await self._back(index)
                except RollcageError as error:
                    message = str(error)
                    continue
                self._recorder.counter("engine_restarts", engine=str(index))
                self._recorder.event("engine_restarted", engine=index)
                return
            self._recorder.event("engine_lost", engine=index, message=message)
        finally:
            del self._tasks[index]
