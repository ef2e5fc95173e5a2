"""A scripted engine that any node can make; in a file that imports little, since every actor imports it."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from rollcage.trainer.engines.base import Engine
from rollcage.trainer.engines.scripted import Line, ScriptedEngine
from rollcage.trainer.types import Request


@dataclass(frozen=True)
class ScriptedConfig:
    """An engine that says ten letters and a stop, by the request's seed and the policy's version.

    Attributes:
        by_prompt: by what was said before and whose turn it is, in place of the seed: then a member of a group that is
            played again says the same again.
    """

    token_s: float = 0.0
    by_prompt: bool = False
    max_batch_size: int = 64
    max_context_tokens: int = 2048
    load_timeout_s: float = 60.0
    step_timeout_s: float = 30.0

    def make(self, replica: int = 0) -> Engine:
        return ScriptedEngine(self._say)

    def _say(self, request: Request, policy_version: int) -> Line:
        said = f"{request.affinity} {request.prompt_ids}"
        seed = crc32(said.encode()) if self.by_prompt else request.seed
        ids = [100 + (seed + 7 * index + policy_version) % 300 for index in range(10)]
        return Line([*ids, min(request.stop_ids)] if request.stop_ids else ids, token_s=self.token_s)
