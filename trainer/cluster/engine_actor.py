"""What runs on a node for one engine replica: the engine itself, asked from elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from rollcage.envs.placements.ray_whereabouts import Whereabouts, whereabouts
from rollcage.trainer.cluster.packing import PackedGeneration, PackedRequest, pack_generation, unpack_request
from rollcage.trainer.engines.base import Engine, EngineError, Weights
from rollcage.trainer.types import Generation


class EngineMaker(Protocol):
    """The configuration of an engine, such as `EngineConfig`, which goes to the node and makes the engine there."""

    @property
    def max_batch_size(self) -> int:
        """See `Engine`."""
        ...

    @property
    def max_context_tokens(self) -> int:
        """See `Engine`; at most."""
        ...

    @property
    def load_timeout_s(self) -> float:
        """Longest start."""
        ...

    @property
    def step_timeout_s(self) -> float:
        """Longest answer to anything but a generation."""
        ...

    def make(self, replica: int = 0) -> Engine:
        """Return engine number ``replica``, not started."""
        ...


class EngineActor:
    """One engine, made here: an asynchronous actor, so that requests run beside each other.

    Args:
        config: of the engine.
        replica: its number.
    """

    def __init__(self, config: EngineMaker, replica: int) -> None:
        self._engine = config.make(replica)
        self._running: dict[str, asyncio.Task[Generation]] = {}

    async def where(self) -> Whereabouts:
        """Return where this is, before the model loads: the log says why, where it does not."""
        return whereabouts()

    async def start(self) -> tuple[int, int]:
        """Load the model; returns the longest context and the most requests at once."""
        await self._engine.start()
        return self._engine.max_context_tokens, self._engine.max_batch_size

    async def ping(self) -> None:
        """Answer: this process lives, and its event loop runs."""

    async def generate(self, packed: PackedRequest) -> PackedGeneration | EngineError:
        """Sample; what the engine refuses or fails at is returned, so that its kind is kept on the way."""
        request = unpack_request(packed)
        while (earlier := self._running.get(request.id)) is not None:  # of a caller that gave it up
            earlier.cancel()
            await asyncio.wait([earlier])
        self._running[request.id] = task = asyncio.create_task(self._engine.generate(request))
        try:
            return pack_generation(await task)
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

    async def publish(
        self, block: Any, entries: Sequence[tuple[str, tuple[int, ...], str, int]], policy_version: int
    ) -> EngineError | None:
        """Use the weights in ``block``, which Ray has brought to this node; returns what is wrong with them."""
        weights: Weights = {}
        if entries:
            from rollcage.trainer.cluster.weights import unpack  # with PyTorch: an engine without weights needs none

            weights = unpack(block, entries)
        try:
            await self._engine.publish(weights, policy_version)
        except EngineError as error:
            return error
        return None

    async def close(self) -> None:
        """See `Engine.close`."""
        await self._engine.close()
