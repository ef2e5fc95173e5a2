"""What the processes of a learner can be: each role's name in messages, and what serves it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

POLICY, CRITICS, ATTENTION = "learner rank", "critic rank", "attention model"

_SERVED_BY = {
    POLICY: ("rollcage.trainer.learner.deepspeed_rank", "DeepSpeedRank"),
    CRITICS: ("rollcage.trainer.learner.critic_rank", "CriticRank"),
    ATTENTION: ("rollcage.trainer.learner.rhythm.attention_rank", "AttentionRank"),
}


def serve(role: str, memory: int) -> Any:
    """Return what serves ``role`` in this process: imports PyTorch.

    Args:
        role: `POLICY`, `CRITICS` or `ATTENTION`.
        memory: descriptor of the shared memory that the policy's rank 0 publishes through.
    """
    module, name = _SERVED_BY[role]
    server = getattr(import_module(module), name)
    return server() if role == CRITICS else server(memory)
