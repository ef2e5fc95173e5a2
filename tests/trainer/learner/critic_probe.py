"""Run as one rank of a learner: let critics judge a batch twice under several configurations; keep the last gradients.

Usage: python critic_probe.py REQUEST REPLY, with RANK, WORLD_SIZE and MASTER_PORT in the environment. REQUEST is a
pickled (batch, {name: LearnerConfig}); rank 0 writes the pickled {name: ([Judgement], [{weight: gradient} of each
critic's last step])}.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from rollcage.trainer.learner import critics
from rollcage.trainer.learner.critic_engines import make_critics
from rollcage.trainer.learner.deepspeed_engine import join_ranks, optimizer_step

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), world_size, is_master=rank == 0)
join_ranks(rank, world_size, store, timeout_s=100)

from deepspeed.utils import safe_get_full_grad  # noqa: E402

torch.set_num_threads(1)
batch, configs = pickle.loads(Path(sys.argv[1]).read_bytes())
results: dict[str, Any] = {}
gradients: dict[int, dict[str, torch.Tensor]] = {}


def take_gradient_and_step(engine: Any, config: Any) -> float:
    """Keep the gradient before the optimiser uses it up."""
    gradients[id(engine)] = {
        name: safe_get_full_grad(weight).clone() for name, weight in engine.module.named_parameters()
    }
    return optimizer_step(engine, config)


critics.optimizer_step = take_gradient_and_step
for name, config in configs.items():
    engines = make_critics(
        config, checkpoint=None, num_tokens=32, attention="sdpa", compute_dtype=getattr(torch, config.compute_dtype)
    )
    ensemble = critics.CriticEnsemble(engines, config, rank)
    judgements = [ensemble.judge(batch, policy_version=version) for version in range(2)]
    results[name] = (judgements, [gradients[id(engine)] for engine in engines])
    gradients.clear()
if rank == 0:
    Path(sys.argv[2]).write_bytes(pickle.dumps(results))
