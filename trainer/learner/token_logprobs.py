"""A language model wrapped so that it gives the log-probabilities of a batch's trainable tokens, and little else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CHUNK_ELEMENTS = 1 << 24
"""So many logits at a time (64 MiB) become float32 log-probabilities, and again in the backward pass."""


class TokenLogprobs(nn.Module):
    """``policy`` with a forward pass from token ids to log-probability and entropy per trainable token.

    Rows are padded on the right and the policy is causal, so no attention mask is needed: no real token sees padding,
    and attention kernels stay on their fast path. The output embedding, which dominates where the vocabulary is large,
    is applied only to the positions that predict a trainable token.

    Args:
        policy: a ``transformers`` causal language model.
        temperature: logits are divided by it; 0 counts as 1.
        compute_dtype: number type of the policy's matrix products, where it is not that of its weights.
    """

    def __init__(self, policy: Any, temperature: float, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.policy = policy
        self._compute_dtype = compute_dtype
        if torch.bfloat16 in (compute_dtype, policy.dtype) and policy.config._attn_implementation == "sdpa":
            use_float32_attention_on_cpu(policy)
        self._temperature = temperature or 1.0
        self._predicts: Tensor | None = None
        # A hook on the head, not a call to it: whatever the model does to its logits afterwards stays in place.
        policy.get_output_embeddings().register_forward_pre_hook(self._keep_predicting)

    def forward(self, token_ids: Tensor, loss_mask: Tensor, entropy_grad: bool = False) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of the trainable tokens, float32 [N] each, in row order.

        Args:
            token_ids: int64 [b, t].
            loss_mask: bool [b, t]; N is its sum; column 0 must be off.
            entropy_grad: keep the graph of the entropies.
        """
        self._predicts = loss_mask[:, 1:]
        with self.precision(token_ids.device):
            logits = self.policy(input_ids=token_ids[:, :-1], use_cache=False).logits[0]
        targets = token_ids[:, 1:][self._predicts]
        self._predicts = None
        rows = max(1, CHUNK_ELEMENTS // logits.shape[-1])
        if len(logits) <= rows:
            return self._logprobs(logits, targets, entropy_grad)
        chunks = [
            checkpoint(self._logprobs, chunk, chunk_targets, entropy_grad, use_reentrant=False)
            for chunk, chunk_targets in zip(torch.split(logits, rows), torch.split(targets, rows), strict=True)
        ]
        return torch.cat([logprobs for logprobs, _ in chunks]), torch.cat([entropy for _, entropy in chunks])

    def precision(self, device: torch.device) -> torch.autocast:
        """Return the context in which the policy computes on ``device``: mixed precision, where it is asked for."""
        # Without the cache of casts: under ZeRO 3 a weight is another tensor each time.
        mixed = self._compute_dtype != torch.float32
        return torch.autocast(device.type, self._compute_dtype, enabled=mixed, cache_enabled=False)

    def _keep_predicting(self, head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Leave only the hidden states that predict a trainable token: [b, t - 1, H] to [1, N, H]."""
        if self._predicts is None:
            return None
        return (inputs[0][self._predicts][None], *inputs[1:])

    def _logprobs(self, logits: Tensor, targets: Tensor, entropy_grad: bool) -> tuple[Tensor, Tensor]:
        """Return log-probability of ``targets`` [n] and entropy [n] under ``logits`` [n, V]."""
        logits = logits.float()
        if self._temperature != 1.0:
            logits = logits / self._temperature
        log_probs = torch.log_softmax(logits, dim=-1)
        logprobs = log_probs.gather(-1, targets[:, None])[:, 0]
        with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
            entropy = -(log_probs.exp() * log_probs).nan_to_num(nan=0.0).sum(-1)  # 0 log 0 = 0
        return logprobs, entropy


def use_float32_attention_on_cpu(policy: Any) -> None:
    """Compute attention in float32 on the CPU: torch's bfloat16 kernel is 3 to 5 times as slow on short sequences."""
    import transformers
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
        if query.device.type != "cpu":
            return sdpa_attention_forward(module, query, key, value, *args, **options)
        with torch.autocast("cpu", enabled=False):
            output, _ = sdpa_attention_forward(module, query.float(), key.float(), value.float(), *args, **options)
        return output.to(query.dtype), None

    transformers.AttentionInterface.register("sdpa_float32_on_cpu", attention)
    transformers.AttentionMaskInterface.register("sdpa_float32_on_cpu", sdpa_mask)
    policy.set_attn_implementation("sdpa_float32_on_cpu")
