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
    model = load_model(path, dtype, attn_implementation="eager")
    config = model.config.get_text_config()
    limits = (getattr(config, name, None) for name in ("max_position_embeddings", "sliding_window"))
    max_context_tokens = min([max_context_tokens, *(limit for limit in limits if limit)])
    try:
        model.to(device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    choose_attention(model, path, max_context_tokens)
    return SlotBatch(model, num_slots=num_slots, num_parked=num_parked, max_context_tokens=max_context_tokens)


def choose_attention(model: Any, path: str, max_context_tokens: int) -> None:
    """Give the model the fastest attention function with which the slots reproduce a plain forward pass.

    Architectures with recurrent state or masks of their own would otherwise go wrong silently.

    Raises:
        UserError: there is none.
    """
    most = 1e-3 if model.dtype == torch.float32 else 0.3
    faults: list[str] = []
    for name in (register_attention(), "sdpa", "eager"):
        try:
            worst = _worst_difference(model, name, min(16, max_context_tokens))
        except Exception as error:  # noqa: BLE001  (boundary: any model's own code, with a cache it does not know)
            faults.append(f"{type(error).__name__}: {error}")
            continue
        if worst <= most:
            return
        faults.append(f"log-probabilities differ by {worst:.2g}")
    fault = " ".join(faults[-1].split())[:200]
    raise UserError(f"{path}: the local engine cannot run {type(model).__name__} ({fault}): use another engine.")


def _worst_difference(model: Any, attention: str, max_context_tokens: int) -> float:
    """Sample from two prompts of unequal length in slots; compare with a forward pass of each whole sequence."""
    batch = SlotBatch(model, num_slots=2, num_parked=0, max_context_tokens=max_context_tokens)
    prompts = [[token % batch.vocab_size for token in prompt] for prompt in ([3, 1, 4, 1, 5, 9], [2, 7])]
    requests = [
        Request(str(index), prompt[-max_context_tokens + 1 :], Sampling(4)) for index, prompt in enumerate(prompts)
    ]
    model.set_attn_implementation(attention)
    rows = batch.admit(requests)
    while batch.rows:
        batch.step()
    model.set_attn_implementation("eager")
    worst = 0.0
    for row in rows:
        ids = torch.tensor([[*row.request.prompt_ids, *row.token_ids]], device=model.device)
        sampled = ids[0, -len(row.token_ids) :, None]
        logprobs = model(input_ids=ids).logits[0, -len(row.token_ids) - 1 : -1].float().log_softmax(-1)
        differences = logprobs.gather(1, sampled)[:, 0] - torch.tensor(row.logprobs, device=model.device)
        worst = max(worst, differences.abs().max().item())
    model.set_attn_implementation(attention)
    return worst
