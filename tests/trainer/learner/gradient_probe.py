"""Run as one rank of a learner: take the gradient of one update under several configurations, without stepping.

Usage: python gradient_probe.py REQUEST REPLY, with RANK, WORLD_SIZE and MASTER_PORT in the environment. REQUEST is a
pickled (batch, {name: LearnerConfig}); rank 0 writes the pickled {name: (grad_norm, rows skipped, {weight: gradient})}.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore

from rollcage.trainer.learner import update
from rollcage.trainer.learner.deepspeed_engine import join_ranks, make_engine, optimizer_step
from rollcage.trainer.learner.token_logprobs import TokenLogprobs
from rollcage.trainer.models import load_model

rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), world_size, is_master=rank == 0)
join_ranks(rank, world_size, store, timeout_s=100)

from deepspeed.utils import safe_get_full_grad  # noqa: E402  (only once the accelerator is chosen)

torch.set_num_threads(1)
batch, configs = pickle.loads(Path(sys.argv[1]).read_bytes())
results: dict[str, Any] = {}
gradients: dict[str, torch.Tensor] = {}


def take_gradient_and_step(engine: Any, config: Any) -> float:
    """Keep the gradient before the optimiser uses it up."""
    for name, weight in engine.module.policy.named_parameters():
        gradients[name] = safe_get_full_grad(weight).clone()
    return optimizer_step(engine, config)


update.optimizer_step = take_gradient_and_step
for name, config in configs.items():
    engine = make_engine(
        TokenLogprobs(load_model(config.model), config.temperature, getattr(torch, config.compute_dtype)), config
    )
    policy = update.PolicyUpdate(engine, config, rank)
    policy.begin(batch, policy_version=0)
    _, statistics = policy.train()
    results[name] = (statistics["grad_norm"], statistics["num_rows_skipped"], dict(gradients))
if rank == 0:
    Path(sys.argv[2]).write_bytes(pickle.dumps(results))
