"""An engine that any node can make and that takes no time: it holds weights, and says as many tokens as it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollcage.trainer.engines.base import Engine, Weights
from rollcage.trainer.engines.scripted import Script, ScriptedEngine
from rollcage.trainer.types import Request


class HoldingEngine(ScriptedEngine):
    """Copies the weights that it gets, as an engine with a model does."""

    def __init__(self, script: Script, *, max_batch_size: int, max_context_tokens: int) -> None:
        super().__init__(script, max_batch_size=max_batch_size, max_context_tokens=max_context_tokens)
        self._held: dict[str, Any] = {}

    async def publish(self, weights: Weights, policy_version: int) -> None:
        """See `Engine.publish`."""
        for name, weight in weights.items():
            held = self._held.get(name)
            if held is None or held.shape != weight.shape:
                self._held[name] = weight.clone()
            else:
                held.copy_(weight)
        await super().publish(weights, policy_version)


@dataclass(frozen=True)
class ScriptedConfig:
    """What makes one; see `EngineMaker`."""

    num_tokens: int = 64
    max_batch_size: int = 1024
    max_context_tokens: int = 2048
    load_timeout_s: float = 120.0
    step_timeout_s: float = 60.0

    def make(self, replica: int = 0) -> Engine:
        """See `EngineMaker.make`."""
        return HoldingEngine(self._say, max_batch_size=self.max_batch_size, max_context_tokens=self.max_context_tokens)

    def _say(self, request: Request, policy_version: int) -> Sequence[int]:
        return [100 + (request.seed + 7 * index) % 300 for index in range(self.num_tokens - 1)] + [
            min(request.stop_ids, default=100)
        ]
