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
    logprobs = torch.log_softmax(scores, dim=-1)
    if top_p is None or top_k is None:
        tokens = _invert(logprobs.exp(), uniforms)
    else:
        tokens = _sample_filtered(logprobs, uniforms, top_p, top_k)
    if temperature is not None:
        tokens = torch.where(temperature > 0, tokens, logprobs.argmax(dim=-1))
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _sample_filtered(
    logprobs: torch.Tensor, uniforms: torch.Tensor, top_p: torch.Tensor, top_k: torch.Tensor
) -> torch.Tensor:
    """Draw among the most likely tokens of each row, renormalised."""
    tokens = _invert(logprobs.exp(), uniforms)
    rows = ((top_p < 1) | (top_k > 0)).nonzero()[:, 0]
    ordered, order = logprobs[rows].sort(dim=-1, descending=True, stable=True)
    probs = ordered.exp()
    rank = torch.arange(probs.shape[-1], device=probs.device)
    most = torch.where(top_k[rows] > 0, top_k[rows], probs.shape[-1])[:, None]
    before = probs.double().cumsum(-1) - probs  # the token that reaches top_p still belongs to the set
    kept = (rank < most) & ((before < top_p[rows, None]) | (rank == 0))
    tokens[rows] = order.gather(1, _invert(probs * kept, uniforms[rows])[:, None])[:, 0]
    return tokens


def _invert(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return [B] the first index whose cumulative weight exceeds the row's uniform share: never one of weight 0.

    Large vocabularies are searched in two levels, blocks first, which sums in place of one long sequential scan.
    """
    num_rows, num_tokens = weights.shape
    if num_tokens > 4096:
        width = 256
        blocks = torch.nn.functional.pad(weights, (0, -num_tokens % width)).view(num_rows, -1, width)
        cumulative = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
        share = uniforms * cumulative[:, -1]
        block = _first_above(cumulative, share)
        inner = blocks[torch.arange(num_rows, device=weights.device), block].double().cumsum(-1)
        before = (cumulative.gather(1, block[:, None])[:, 0] - inner[:, -1]).clamp(min=0)
        # rounding may leave the share a hair beyond the block's own sum: stay inside
        within = torch.minimum(share - before, inner[:, -1] * (1 - 2.0**-52)).clamp(min=0)
        return (block * width + _first_above(inner, within)).clamp(max=num_tokens - 1)
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    return _first_above(cumulative, uniforms * cumulative[:, -1])


def _first_above(cumulative: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    found = torch.searchsorted(cumulative, share[:, None].contiguous(), right=True)[:, 0]
    return found.clamp(max=cumulative.shape[-1] - 1)  # beyond the end only where the row is NaN
