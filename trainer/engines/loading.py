"""Loading a model into a `SlotBatch`, and the proof that its architecture works there."""

from __future__ import annotations

from typing import Any

import torch

from rollcage.errors import UserError
from rollcage.trainer.engines.batching import SlotBatch
from rollcage.trainer.engines.slots import register_attention
from rollcage.trainer.models import load_model
from rollcage.trainer.types import Request, Sampling


def load_batch(
    path: str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    num_slots: int = 64,
    num_parked: int = 0,
    max_context_tokens: int = 2048,
) -> SlotBatch:
    """Load the model at ``path`` and make an empty batch of it, its context cut to what the model can do.

    Raises:
        UserError: no such model or device, or an architecture that the slots do not reproduce.
    """
    model = load_model(path, dtype)
    config = model.config.get_text_config()
    limits = (getattr(config, name, None) for name in ("max_position_embeddings", "sliding_window"))
    max_context_tokens = min([max_context_tokens, *(limit for limit in limits if limit)])
    try:
        model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    check_model(model, path)
    return SlotBatch(model, num_slots=num_slots, num_parked=num_parked, max_context_tokens=max_context_tokens)


def check_model(model: Any, path: str) -> None:
    """Compare a few tokens that two sequences sample in slots with a plain forward pass, and refuse a difference.

    Architectures with recurrent state, latent caches or attention of their own would otherwise go wrong silently.

    Raises:
        UserError: log-probabilities differ.
    """
    batch = SlotBatch(model, num_slots=2, num_parked=0, max_context_tokens=16)
    size = batch.vocab_size
    prompts = [[token % size for token in prompt] for prompt in ([3, 1, 4, 1, 5, 9], [2, 7])]
    stock = model.config._attn_implementation
    try:
        model.set_attn_implementation(register_attention())
        rows = batch.admit([Request(str(index), prompt, Sampling(4)) for index, prompt in enumerate(prompts)])
        while batch.rows:
            batch.step()
        model.set_attn_implementation(stock)
        worst = 0.0
        for row, prompt in zip(rows, prompts, strict=True):
            ids = torch.tensor([[*prompt, *row.token_ids]], device=model.device)
            logprobs = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
            plain = logprobs.gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()
            worst = max([worst, *(abs(a - b) for a, b in zip(plain, row.logprobs, strict=True))])
        model.set_attn_implementation(register_attention())
    except (NotImplementedError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise UserError(f"{path}: the local engine cannot run {type(model).__name__}: {error}") from error
    if worst > (1e-3 if model.dtype == torch.float32 else 0.3):
        raise UserError(
            f"{path}: the local engine does not reproduce {type(model).__name__} (log-probabilities differ by "
            f"{worst:.3g}): use another engine."
        )
