"""The engine seam: whatever turns prompt ids into sampled ids with log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from rollcage.errors import RollcageError
from rollcage.trainer.types import Generation, Request

Weights = Mapping[str, Any]
"""Parameter name -> CPU tensor, names as in the model's ``state_dict`` (tied weights once)."""


class EngineError(RollcageError):
    """The engine could not serve a request; the sample is lost and counted, the engine may live on."""

    reason = "engine_error"


class EngineDied(EngineError):
    """The engine is gone; every request in flight gets this."""

    reason = "engine_died"


class ContextFull(EngineError):
    """The prompt leaves no room for a single token in the model's context."""

    reason = "context_full"


class Engine(Protocol):
    """One replica. Used from one event loop; nothing here blocks it.

    Attributes:
        policy_version: version of the weights in use.
        max_context_tokens: longest prompt plus response.
        max_batch_size: most requests that run at once; more wait in the engine, first come, first served.
        num_live: requests running or waiting.
    """

    policy_version: int
    max_context_tokens: int
    max_batch_size: int

    @property
    def num_live(self) -> int:
        """Requests running or waiting."""
        ...

    async def start(self) -> None:
        """Load and get ready; idempotent."""
        ...

    async def generate(self, request: Request) -> Generation:
        """Sample until a stop id or a limit. Cancelling the call aborts the request and frees its slot.

        Raises:
            ContextFull, EngineError, EngineDied.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request early: its `generate` returns what it has, finish reason "abort". Unknown ids are ignored."""
        ...

    async def pause(self) -> None:
        """Stop sampling before the next token; requests keep their place."""
        ...

    async def resume(self) -> None:
        """Go on after `pause`."""
        ...

    async def publish(self, weights: Weights, policy_version: int) -> None:
        """Use ``weights`` from the next token on; requests in flight go on, each token carries its version.

        On return the weights have been copied: the caller may overwrite them.
        """
        ...

    async def close(self) -> None:
        """Free everything; requests in flight get EngineDied. Idempotent."""
        ...


@runtime_checkable
class Restartable(Protocol):
    """An engine that can begin anew after its death."""

    async def restart(self) -> None:
        """Begin anew, with the newest weights that it was ever given; bounded by the engine's own deadlines.

        Raises:
            EngineError: it cannot, or not now.
        """
