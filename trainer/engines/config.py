"""Which engine a run has: the options of `rollcage train` below ``--engine``, and the engine that they mean."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal

from rollcage.trainer.engines.base import Engine
from rollcage.trainer.engines.local import LocalEngine, LocalEngineConfig
from rollcage.trainer.engines.vllm import VllmEngine
from rollcage.trainer.engines.vllm_options import VllmEngineConfig, VllmOptions


@dataclass(frozen=True)
class EngineConfig(LocalEngineConfig):
    """Configuration of a run's engines. ``device`` and ``parked_prefixes`` are the local engine's alone."""

    kind: Literal["local", "vllm"] = "local"
    """local: ours, for any transformers model, on the CPU or a GPU; vllm: vLLM (extra vllm), each replica in a process
    of its own, here or on an engine server."""
    vllm: VllmOptions = field(default_factory=VllmOptions)
    """Of vLLM alone."""

    def make(self, replica: int = 0, *, log: Path | None = None) -> Engine:
        """Return engine number ``replica``, not started; ``log`` is where a process of its own writes."""
        if self.kind == "local":
            return LocalEngine(LocalEngineConfig(**{f.name: getattr(self, f.name) for f in fields(LocalEngineConfig)}))
        own = {f.name for f in fields(VllmEngineConfig)} & {f.name for f in fields(LocalEngineConfig)}
        config = VllmEngineConfig(**asdict(self.vllm), **{name: getattr(self, name) for name in own})
        return VllmEngine(config, replica=replica, log=log)
