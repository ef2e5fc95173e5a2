"""Asymmetric PPO with mini-critics (AsyPPO, arXiv 2510.01656): its formulas, as pure functions of plain tensors.

They know nothing of Rollcage's batches, models or DeepSpeed: any training loop can call them, on any device. Values are
``[M, B, T]``: M critics, B rows, T tokens, ``values[m, b, t]`` critic m's value *before* token t. ``loss_mask`` is
``[B, T]`` and bool: on for tokens that the policy sampled; where it is off the other tensors may hold anything.

>>> import torch
>>> response_shares(torch.tensor([7, 7, 7, 7, 9, 9]), num_critics=2)  # each critic: half of every prompt's responses
tensor([0, 1, 0, 1, 0, 1])
>>> values = torch.tensor([[[0.2, 0.4, 0.9, 0.5]], [[0.2, 0.6, 0.1, 0.1]]])  # two critics, one response
>>> sigma = disagreement(values, torch.ones(1, 4, dtype=torch.bool))
>>> sigma
tensor([[0.0000, 0.1000, 0.4000, 0.2000]])
>>> keep_uncertain(sigma, torch.ones(1, 4, dtype=torch.bool), masked_share=0.25)  # I_A: the advantage counts
tensor([[False,  True,  True,  True]])
>>> keep_certain(sigma, torch.ones(1, 4, dtype=torch.bool), masked_share=0.25)  # I_H: the entropy bonus counts
tensor([[ True,  True, False,  True]])
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor


def response_shares(group_ids: Tensor, num_critics: int) -> Tensor:
    """Return which critic trains on each response: int64 [N], numbers below ``num_critics``.

    Every prompt's group is divided disjointly and as equally as can be: each critic gets size / M of it, rounded up or
    down. What does not divide evenly rotates: a group begins with the critic after the one that the group before it
    ended with, so that over all groups no critic has more than one response more than another.

    Args:
        group_ids: int [N]; responses to one prompt share a number. Those of one group need not stand together.
        num_critics: M.
    """
    order = torch.argsort(group_ids, stable=True)
    shares = torch.empty(len(group_ids), dtype=torch.int64, device=group_ids.device)
    shares[order] = torch.arange(len(group_ids), device=group_ids.device) % num_critics
    return shares


def mean_value(values: Tensor) -> Tensor:
    """Return the ensemble's value: the mean over the critics. [M, B, T] -> [B, T]."""
    return values.mean(0)


def disagreement(values: Tensor, loss_mask: Tensor) -> Tensor:
    """Return ``sigma_t``, the population std of the critics' values; for two, half of their distance.

    [M, B, T] -> [B, T] of the values' number type (taken in float64); 0 where ``loss_mask`` is off.
    """
    sigma = values.double().std(0, correction=0).to(values.dtype)
    return torch.where(loss_mask, sigma, torch.zeros_like(sigma))


def keep_uncertain(
    sigma: Tensor, loss_mask: Tensor, masked_share: float = 0.2, response_ids: Tensor | None = None
) -> Tensor:
    """Return ``I_A``: off on the trainable tokens on which the critics agree most; the advantage counts where it is on.

    Exactly ``floor(masked_share * N)`` of the N trainable tokens are off; of equal ones, the first by row and position.

    Args:
        sigma: [B, T], of `disagreement`.
        loss_mask: bool [B, T].
        masked_share: k, in [0, 1].
        response_ids: int [B]; rank within each response (rows with the same number) instead of the whole batch.

    Returns:
        bool [B, T]; on where ``loss_mask`` is off.
    """
    return ~_lowest(sigma, loss_mask, masked_share, response_ids)


def keep_certain(
    sigma: Tensor, loss_mask: Tensor, masked_share: float = 0.2, response_ids: Tensor | None = None
) -> Tensor:
    """Return ``I_H``: off on the trainable tokens on which the critics disagree most; they get no entropy bonus.

    Everything else as in `keep_uncertain`.
    """
    return ~_lowest(-sigma, loss_mask, masked_share, response_ids)


def value_loss(values: Tensor, targets: Tensor, old_values: Tensor | None = None, clip: float = 0.0) -> Tensor:
    """Return ``0.5 (V - R)^2`` for each token, the same shape as ``values``.

    With ``clip`` > 0 the greater of it and ``0.5 (V_clipped - R)^2``, where ``V_clipped`` is V held within ``clip`` of
    ``old_values``, the critic's own before the update (PPO, arXiv 1707.06347, as in its reference code).

    Raises:
        ValueError: ``clip`` without ``old_values``.
    """
    loss = 0.5 * (values - targets).square()
    if not clip:
        return loss
    if old_values is None:
        raise ValueError("clip needs old_values")
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(loss, 0.5 * (clipped - targets).square())


def explained_variance(values: Tensor, returns: Tensor, loss_mask: Tensor) -> float:
    """Return ``1 - Var(R - V) / Var(R)`` over the trainable tokens: 1 is perfect, 0 no better than a constant.

    All [B, T]. NaN where the returns do not vary.
    """
    v, r = values[loss_mask].double(), returns[loss_mask].double()
    if len(r) == 0 or bool((r == r[0]).all()):
        return float("nan")
    return float(1 - (r - v).var(correction=0) / r.var(correction=0))


def correlation(values: Tensor, returns: Tensor, loss_mask: Tensor) -> float:
    """Return Pearson's correlation of values and returns over the trainable tokens, in [-1, 1].

    All [B, T]. NaN where one of them does not vary.
    """
    v, r = values[loss_mask].double(), returns[loss_mask].double()
    if len(r) == 0 or bool((r == r[0]).all()) or bool((v == v[0]).all()):
        return float("nan")
    return float(torch.corrcoef(torch.stack([v, r]))[0, 1].clamp(-1, 1))


def disagreement_histogram(sigma: Tensor, loss_mask: Tensor, edges: Sequence[float]) -> list[float]:
    """Return the share of the trainable tokens below the first edge, between each two, and from the last edge on.

    ``edges`` rise; an edge belongs to the bin above it. len(edges) + 1 shares that sum to 1; zeros without a token.
    """
    chosen = sigma[loss_mask]
    bins = torch.bucketize(chosen, torch.tensor(edges, dtype=chosen.dtype, device=chosen.device), right=True)
    counts = torch.bincount(bins, minlength=len(edges) + 1)
    return [int(count) / max(1, len(chosen)) for count in counts]


def _lowest(scores: Tensor, loss_mask: Tensor, share: float, response_ids: Tensor | None) -> Tensor:
    """Return which trainable tokens, bool [B, T], have the lowest scores: exactly floor(share * N) of N."""
    chosen = torch.zeros(loss_mask.shape, dtype=torch.bool, device=loss_mask.device)
    if response_ids is None:
        rows = [torch.arange(len(loss_mask), device=loss_mask.device)]
    else:
        rows = [torch.nonzero(response_ids == number)[:, 0] for number in torch.unique(response_ids)]
    for members in rows:
        row, column = torch.nonzero(loss_mask[members], as_tuple=True)  # by row, then by position
        row = members[row]
        # As a decimal: 0.29 * 100 is 28.999... in binary, and floor would lose a token.
        number = int(Fraction(str(share)) * len(row))
        lowest = torch.argsort(scores[row, column], stable=True)[:number]
        chosen[row[lowest], column[lowest]] = True
    return chosen
