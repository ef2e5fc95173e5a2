"""The critics' models and DeepSpeed engines on one rank: made, saved and loaded beside the policy's."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rollcage.errors import UserError
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.critic_config import CriticConfig
from rollcage.trainer.learner.deepspeed_engine import make_engine
from rollcage.trainer.learner.dropout import without_dropout
from rollcage.trainer.learner.token_values import TokenValues
from rollcage.trainer.models import blank_model, load_model

STATE = "deepspeed"
FOLDER = "critics"


def critic_optimizer(config: LearnerConfig) -> LearnerConfig:
    """Return the learner's configuration as a critic's engine has it: its own optimiser, everything else the same."""
    critic = config.critic
    return replace(
        config,
        lr=critic.lr,
        warmup_steps=critic.warmup_steps,
        decay_steps=0,
        betas=critic.betas,
        weight_decay=critic.weight_decay,
        max_grad_norm=critic.max_grad_norm,
        advantage="grpo",
        advantage_options={},
        critic=CriticConfig(),
    )


def make_critics(
    config: LearnerConfig, *, checkpoint: Path | None, num_tokens: int, attention: str, compute_dtype: torch.dtype
) -> list[Any]:
    """Return one engine for each critic. All begin alike: the body of the configured model, and a head of zeros.

    Args:
        config: of the learner.
        checkpoint: what `save_critics` wrote there gives the body its shape; `load_critics` is still to be called.
        num_tokens: of the policy's vocabulary.
        attention: transformers' name of the attention kernel.
        compute_dtype: of the matrix products.

    Raises:
        UserError: the model cannot be used, or knows fewer tokens than the policy.
    """
    source = config.critic.model or config.model
    model = load_model(source, config.dtype) if checkpoint is None else blank_model(checkpoint / FOLDER, config.dtype)
    known = model.config.get_text_config().vocab_size
    if known < num_tokens:
        raise UserError(
            f"learner.critic.model {source} knows {known} tokens, the policy {num_tokens}: take a model of the "
            "policy's family, with the same tokenizer."
        )
    without_dropout(model)
    model.set_attn_implementation(attention)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    critics = [copy.deepcopy(model.base_model) for _ in range(config.critic.num_critics)]
    optimizer = critic_optimizer(config)
    modules = [TokenValues(body, compute_dtype).to(body.dtype) for body in critics]
    return [make_engine(module, optimizer) for module in modules]


def save_critics(engines: Sequence[Any], folder: Path, rank: int) -> None:
    """Write every critic's weights and optimiser under ``folder/critics``; on all ranks."""
    for m, engine in enumerate(engines):
        engine.save_checkpoint(str(folder / FOLDER), tag=f"{STATE}-{m}", save_latest=False)
    if rank == 0 and engines:
        engines[0].module.body.config.save_pretrained(folder / FOLDER)


def load_critics(engines: Sequence[Any], folder: Path) -> None:
    """Go back to what `save_critics` wrote; whatever the reader raises goes to the caller."""
    for m, engine in enumerate(engines):
        path, _ = engine.load_checkpoint(str(folder / FOLDER), tag=f"{STATE}-{m}")
        if path is None:
            raise FileNotFoundError(f"no critic {m} in {folder}")
