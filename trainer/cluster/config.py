"""Which share of a Ray cluster each part of a run takes: the options of `rollcage train` below ``--ray``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

_KINDS = ("engine", "rank", "critic", "attention")


@dataclass(frozen=True)
class RayConfig:
    """What one actor of each kind takes of its node, which nodes it may be on, and how a cluster's losses are met.

    Replicas, ranks and what is apart from these are reserved together, as one placement group, before anything starts.
    """

    engine_cpus: float = 1.0
    """CPUs of one engine replica."""
    engine_gpus: float = 0.0
    """GPUs of one engine replica; it sees no others. With it goes engine.device cuda."""
    engine_nodes: dict[str, str] = field(default_factory=dict)
    """Labels of the nodes that engine replicas may be on, as KEY VALUE pairs (`ray start --labels KEY=VALUE`); nothing:
    any node."""
    rank_cpus: float = 1.0
    """CPUs of one rank of the learner."""
    rank_gpus: float = 0.0
    """GPUs of one rank: at most 1, and with GPUs a single rank."""
    rank_nodes: dict[str, str] = field(default_factory=dict)
    """Labels of the nodes that ranks may be on."""
    critic_cpus: float = 1.0
    """CPUs of one process of the critics, where these have their own (learner.critic.placement own)."""
    critic_gpus: float = 0.0
    """GPUs of one such process: at most 1, and with GPUs a single process (learner.critic.num_ranks 1)."""
    critic_nodes: dict[str, str] = field(default_factory=dict)
    """Labels of the nodes that they may be on."""
    attention_cpus: float = 1.0
    """CPUs of the attention model, where it has a process of its own (learner.rhythm.placement own)."""
    attention_gpus: float = 0.0
    """GPUs of it: at most 1."""
    attention_nodes: dict[str, str] = field(default_factory=dict)
    """Labels of the nodes that it may be on."""
    colocate: bool = False
    """Put replica i and rank i on the same part of a node, so that fractions of a GPU (engine_gpus 0.5, rank_gpus 0.5)
    are of one GPU; with rollout.async_ratio 0 both use it in turn."""
    env_cpus: float = 0.01
    """CPUs of one environment in placement ray or process: it mostly waits for the policy."""
    env_nodes: dict[str, str] = field(default_factory=dict)
    """Labels of the nodes that environments may be on."""
    join_timeout_s: float = 0.0
    """So long a run waits for nodes that are still to join where those that are there can never give what it asks."""
    place_timeout_s: float = 120.0
    """So long a run waits until others have left it what it asks."""
    ping_timeout_s: float = 30.0
    """An engine replica whose process does not answer for so long has died, and is made anew."""
    learner_restarts: int = 3
    """How often in a row the learner is made anew from the last checkpoint, without an update between; then the run
    ends with its error."""

    def faults(self) -> Iterable[str]:
        """Yield what cannot be meant, one clause each."""
        for name in (
            *(f"{kind}_{what}" for kind in _KINDS for what in ("cpus", "gpus")),
            "env_cpus",
            "join_timeout_s",
            "learner_restarts",
        ):
            if not 0 <= getattr(self, name) < float("inf"):
                yield f"{name} must be at least 0, not {getattr(self, name)}"
        for name in ("ping_timeout_s", "place_timeout_s"):
            if not 0 < getattr(self, name) < float("inf"):
                yield f"{name} must be above 0, not {getattr(self, name)}"
        for kind in _KINDS:
            if not (getattr(self, f"{kind}_cpus") or getattr(self, f"{kind}_gpus")):
                yield f"{kind}_cpus or {kind}_gpus must be above 0"
        if self.colocate and self.engine_nodes != self.rank_nodes:
            yield "colocate goes with engine_nodes and rank_nodes that are the same"
