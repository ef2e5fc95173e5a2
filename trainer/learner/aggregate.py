"""From per-token losses to one number: a mode weighs every token of the global batch, and the loss is the weighted sum.

The weights are made once per optimiser step, from the loss mask of all micro-batches and ranks; each micro-batch then
sums its own rows. So neither gradient accumulation nor data parallelism can change the result. Names as in DAPO
(arXiv 2503.14476); the fixed length of seq-mean-token-sum-norm is Dr. GRPO's (arXiv 2503.20783).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

DEFAULT_AGGREGATION = "seq-mean-token-mean"

SequenceWeights = Callable[[Tensor, int], Tensor]
"""``(number of trainable tokens of each sequence, float64 [S]; fixed length) -> weight of each of its tokens [S]``."""


def token_mean(tokens: Tensor, max_length: int) -> Tensor:
    """Mean over all trainable tokens."""
    return torch.ones_like(tokens) / tokens.sum().clamp(min=1)


def seq_mean_token_mean(tokens: Tensor, max_length: int) -> Tensor:
    """Mean over sequences of the mean over their trainable tokens."""
    return 1 / (tokens.clamp(min=1) * _num_trainable(tokens))


def seq_mean_token_sum(tokens: Tensor, max_length: int) -> Tensor:
    """Mean over sequences of the sum over their trainable tokens."""
    return torch.ones_like(tokens) / _num_trainable(tokens)


def seq_mean_token_sum_norm(tokens: Tensor, max_length: int) -> Tensor:
    """Mean over sequences of the sum over their trainable tokens, divided by the fixed length ``max_length``."""
    return seq_mean_token_sum(tokens, max_length) / max_length


AGGREGATIONS: dict[str, SequenceWeights] = {
    "token-mean": token_mean,
    "seq-mean-token-mean": seq_mean_token_mean,
    "seq-mean-token-sum": seq_mean_token_sum,
    "seq-mean-token-sum-norm": seq_mean_token_sum_norm,
}


def token_weights(
    loss_mask: Tensor, mode: str = DEFAULT_AGGREGATION, *, sequence_ids: Tensor | None = None, max_length: int = 1
) -> Tensor:
    """Return the weight of every token of the global batch: float32 [B, T], 0 where the mask is off.

    Args:
        loss_mask: bool [B, T] of the whole batch. Sequences without a trainable token leave the denominator.
        mode: a key of `AGGREGATIONS`.
        sequence_ids: int64 [B]; rows with the same number are one sequence (an episode split into several rows); None:
            every row is one.
        max_length: the fixed length of seq-mean-token-sum-norm, in tokens.
    """
    if sequence_ids is None:
        sequence_ids = torch.arange(len(loss_mask))
    numbers, sequence_of_row = torch.unique(sequence_ids, return_inverse=True)
    tokens = torch.zeros(len(numbers), dtype=torch.float64)
    tokens.index_add_(0, sequence_of_row, loss_mask.sum(1, dtype=torch.float64))
    return (loss_mask * AGGREGATIONS[mode](tokens, max_length)[sequence_of_row][:, None]).float()


def aggregate(loss: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of the per-token ``loss``; both [b, T], the same rows of the global batch.

    Where a weight is 0 the loss counts as exactly 0, with zero gradient, even if it is NaN or infinite.
    """
    return (torch.where(weights != 0, loss, torch.zeros((), dtype=loss.dtype, device=loss.device)) * weights).sum()


def _num_trainable(tokens: Tensor) -> Tensor:
    return (tokens > 0).sum().clamp(min=1)
