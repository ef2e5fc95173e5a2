"""Which share of a Ray cluster each part of a run takes: the options of `rollcage train` below ``--ray``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class RayConfig:
    """What one actor of each kind takes of its node, and how a cluster's losses are met."""

    engine_cpus: float = 1.0
    """CPUs of one engine replica."""
    engine_gpus: float = 0.0
    """GPUs of one engine replica; it sees no others. With it goes engine.device cuda."""
    rank_cpus: float = 1.0
    """CPUs of one rank of the learner."""
    rank_gpus: float = 0.0
    """GPUs of one rank: 0, or 1 with a single rank."""
    ping_timeout_s: float = 30.0
    """An engine replica whose process does not answer for so long has died, and is made anew."""
    learner_restarts: int = 3
    """How often in a row the learner is made anew from the last checkpoint, without an update between; then the run
    ends with its error."""

    def faults(self) -> Iterable[str]:
        """Yield what cannot be meant, one clause each."""
        for name in ("engine_cpus", "engine_gpus", "rank_cpus", "rank_gpus", "learner_restarts"):
            if not 0 <= getattr(self, name) < float("inf"):
                yield f"{name} must be at least 0, not {getattr(self, name)}"
        if not 0 < self.ping_timeout_s < float("inf"):
            yield f"ping_timeout_s must be above 0, not {self.ping_timeout_s}"
