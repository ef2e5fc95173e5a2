"""Drawing tokens: a pure function of the logits and one uniform number per sequence."""

from __future__ import annotations

import numpy as np
import torch


def request_uniforms(seed: int, num: int) -> list[float]:
    """Return the ``num`` numbers in [0, 1) that decide a request's draws: the k-th decides its k-th token."""
    numbers: list[float] = np.random.Generator(np.random.Philox(key=seed % 2**128)).random(num).tolist()
    return numbers


def sample(
    logits: torch.Tensor,
    uniforms: torch.Tensor,
    temperature: torch.Tensor | None = None,
    top_p: torch.Tensor | None = None,
    top_k: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row by inverting its cumulative distribution, whatever else is in the batch.

    Args:
        logits: [B, V].
        uniforms: [B] float64 in [0, 1).
        temperature: [B]; 0 takes the most likely token. None: 1 everywhere.
        top_p, top_k: [B] as in `Sampling`; both or neither. None: off everywhere (no sorting).

    Returns:
        token ids [B] and log-probabilities [B] float32 as in `Generation.logprobs`: at the temperature (1 where it is
        0), without top-p and top-k.
    """
    scores = logits.float()
    if temperature is not None:
        scores = scores / torch.where(temperature > 0, temperature, 1.0).to(scores.dtype)[:, None]
    probs = torch.softmax(scores, dim=-1)
    tokens = _invert(probs, uniforms)
    if top_p is not None and top_k is not None:
        rows = ((top_p < 1) | (top_k > 0)).nonzero()[:, 0]
        tokens[rows] = _sample_filtered(probs[rows], uniforms[rows], top_p[rows], top_k[rows])
    if temperature is not None:
        tokens = torch.where(temperature > 0, tokens, scores.argmax(dim=-1))
    return tokens, probs.gather(1, tokens[:, None])[:, 0].log()


def _sample_filtered(
    probs: torch.Tensor, uniforms: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor
) -> torch.Tensor:
    """Draw among the most likely tokens of each row, renormalised."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(probs.shape[-1], device=probs.device)
    most = torch.where(top_k > 0, top_k, probs.shape[-1])[:, None]
    before = ordered.cumsum(-1, dtype=torch.float64) - ordered  # the token that reaches top_p still belongs to the set
    kept = (rank < most) & ((before < top_p[:, None]) | (rank == 0))
    return order.gather(1, _invert(ordered * kept, uniforms)[:, None])[:, 0]


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return [B] the first index whose cumulative weight exceeds the row's uniform share: never one of weight 0.

    Large vocabularies are searched in two levels, blocks first: sums in place of one long sequential scan.
    """
    num_rows, num_tokens = weights.shape
    if num_tokens > 4096:
        width = 256
        blocks = torch.nn.functional.pad(weights, (0, -num_tokens % width)).view(num_rows, -1, width)
        totals = blocks.sum(-1).double()
        cumulative = totals.cumsum(-1)
        share = uniforms * cumulative[:, -1]
        rows, block = torch.arange(num_rows, device=weights.device), _first_above(cumulative, share)
        inner = blocks[rows, block].cumsum(-1, dtype=torch.float64)
        total = totals[rows, block]
        fraction = ((share - (cumulative[rows, block] - total)) / total).clamp(0, 1 - 2.0**-52)
        return (block * width + _first_above(inner, fraction * inner[:, -1])).clamp(max=num_tokens - 1)
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    return _first_above(cumulative, uniforms * cumulative[:, -1])


def _first_above(cumulative: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    found = torch.searchsorted(cumulative, share[:, None].contiguous(), right=True)[:, 0]
    return found.clamp(max=cumulative.shape[-1] - 1)  # beyond the end only where the row is NaN
