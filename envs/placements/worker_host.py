"""What `process` and `sandbox` share: one worker at the end of a line, which is asked one thing at a time."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from rollcage.envs.placements.base import EnvDied, EnvTimeout, PlacementError
from rollcage.envs.placements.pool import answer_by
from rollcage.envs.placements.told import Relay
from rollcage.envs.placements.worker_process import request, result_of
from rollcage.errors import UserError

CLOSE_S = 5.0
"""For an environment's own close(), and for a killed worker to be gone."""


class WorkerHost(ABC):
    """One environment in a worker (`rollcage.envs.worker`) somewhere; see `rollcage.envs.placements.pool.Host`.

    `start` may be called again once it is broken: then it begins anew with another worker.

    Args:
        make_args: arguments of the worker's "make" (`make_request`).

    Attributes:
        checkpoint: the environment's state after the last `ask` that wanted it; None where it offers none.
    """

    def __init__(self, make_args: dict[str, Any]) -> None:
        self.broken = False
        self.checkpoint: str | None = None
        self._make_args = make_args
        self._answer: asyncio.Future[Any] | None = None
        self._relay = Relay()

    @abstractmethod
    async def _open(self, deadline_s: float) -> None:
        """Start a worker, whose replies go to `_settle`; raises PlacementError or UserError."""

    @abstractmethod
    def _send(self, frame: bytes) -> None:
        """Send a frame, without waiting; raises EnvDied where there is no worker."""

    @abstractmethod
    async def _kill(self) -> None:
        """End the worker, whatever it does; idempotent."""

    @abstractmethod
    def _buried(self, error: PlacementError) -> PlacementError:
        """Return ``error`` with how the worker had ended, after `_kill`."""

    async def start(self, deadline_s: float) -> None:
        """See `Host.start`."""
        end_s = asyncio.get_running_loop().time() + deadline_s
        self.broken = False
        try:
            await self._open(deadline_s)
        except BaseException:
            self.broken = True
            raise
        await self.ask("make", self._make_args, max(0.0, end_s - asyncio.get_running_loop().time()))

    async def ask(self, operation: str, args: dict[str, Any], deadline_s: float, *, checkpoint: bool = False) -> Any:
        """See `Host.ask`.

        Args:
            operation, args, deadline_s: as there.
            checkpoint: keep the environment's state after it in ``checkpoint``.
        """
        end_s = asyncio.get_running_loop().time() + deadline_s
        try:
            frame = request(operation, args, deadline_s, checkpoint=checkpoint)
            self._answer = answer = asyncio.get_running_loop().create_future()
            self._send(frame)
            reply = await answer_by(answer, deadline_s)
            self._hear(reply)
            result = result_of(reply)
            if checkpoint:
                self.checkpoint = await self._keep(reply, end_s - asyncio.get_running_loop().time())
            return result
        except UserError:
            raise
        except (EnvDied, EnvTimeout) as error:
            self.broken = True
            await self._kill()
            self._relay.gone()
            raise self._buried(error) from None
        except BaseException:
            self.broken = True
            raise
        finally:
            self._answer = None

    async def _keep(self, reply: dict[str, Any], deadline_s: float) -> str | None:
        """Return the state that a reply brings, once the files that belong to it are kept too; None: they are not."""
        state: str | None = reply.get("checkpoint")
        return state

    def _hear(self, reply: Any) -> None:
        """Pass on what was measured in the worker."""
        if isinstance(reply, dict) and "told" in reply:
            self._relay.hear(reply["told"])

    def _settle(self, outcome: Any) -> None:
        """Take a reply, or the `EnvDied` in place of all further ones."""
        if isinstance(outcome, EnvDied) or self._answer is None:
            self.broken = True  # gone, or it speaks without being asked
        if self._answer is not None and not self._answer.done():
            if isinstance(outcome, EnvDied):
                self._answer.set_exception(outcome)
            else:
                self._answer.set_result(outcome)

    async def end(self) -> None:
        """See `Host.end`."""
        if not self.broken:
            try:
                await self.ask("close", {}, CLOSE_S)
            except (PlacementError, UserError):
                pass  # a close() that fails or hangs changes nothing: the worker is killed now
        self.broken = True
        await self._kill()
        self._relay.gone()
