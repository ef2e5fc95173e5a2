"""What runs on a node for one engine replica: the engine itself, asked from elsewhere."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from rollcage.trainer.cluster.weights import unpack
from rollcage.trainer.engines.base import EngineError
from rollcage.trainer.engines.config import EngineConfig
from rollcage.trainer.learner.shared_weights import Layout
from rollcage.trainer.types import Generation, Request


class EngineActor:
    """One engine, made here: an asynchronous actor, so that requests run beside each other.

    Args:
        config: of the engine.
        replica: its number.
    """

    def __init__(self, config: EngineConfig, replica: int) -> None:
        self._engine = config.make(replica)
        self._running: dict[str, asyncio.Task[Generation]] = {}

    async def start(self) -> tuple[int, int, int]:
        """Load the model; returns the longest context, the most requests at once, and the id of this process."""
        await self._engine.start()
        return self._engine.max_context_tokens, self._engine.max_batch_size, os.getpid()

    async def ping(self) -> None:
        """Answer: this process lives, and its event loop runs."""

    async def generate(self, request: Request) -> Generation | EngineError:
        """Sample; what the engine refuses or fails at is returned, so that its kind is kept on the way."""
        while (earlier := self._running.get(request.id)) is not None:  # of a caller that gave it up
            earlier.cancel()
            await asyncio.wait([earlier])
        self._running[request.id] = task = asyncio.create_task(self._engine.generate(request))
        try:
            return await task
        except EngineError as error:
            return error
        finally:
            if self._running.get(request.id) is task:
                del self._running[request.id]

    async def give_up(self, request_id: str) -> None:
        """Free the slot of a request whose caller does not wait any more."""
        if (task := self._running.get(request_id)) is not None:
            task.cancel()

    async def abort(self, request_id: str) -> None:
        """See `Engine.abort`."""
        await self._engine.abort(request_id)

    async def pause(self) -> None:
        """See `Engine.pause`."""
        await self._engine.pause()

    async def resume(self) -> None:
        """See `Engine.resume`."""
        await self._engine.resume()

    async def publish(self, block: Any, layout: Layout, policy_version: int) -> EngineError | None:
        """Use the weights in ``block``, which Ray has brought to this node; returns what is wrong with them."""
        try:
            await self._engine.publish(unpack(block, layout), policy_version)
        except EngineError as error:
            return error
        return None

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._engine.close()
