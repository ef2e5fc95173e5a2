"""A scripted engine that any node can make; in a file that imports little, since every actor imports it."""

from __future__ import annotations

from dataclasses import dataclass

from rollcage.trainer.engines.base import Engine
from rollcage.trainer.engines.scripted import Line, ScriptedEngine
from rollcage.trainer.types import Request


@dataclass(frozen=True)
class ScriptedConfig:
    """An engine that says ten letters and a stop, by the request's seed and the policy's version."""

    token_s: float = 0.0
    max_batch_size: int = 64
    max_context_tokens: int = 2048
    load_timeout_s: float = 60.0
    step_timeout_s: float = 30.0

    def make(self, replica: int = 0) -> Engine:
        return ScriptedEngine(self._say)

    def _say(self, request: Request, policy_version: int) -> Line:
        ids = [100 + (request.seed + 7 * index + policy_version) % 300 for index in range(10)]
        return Line([*ids, min(request.stop_ids)] if request.stop_ids else ids, token_s=self.token_s)
