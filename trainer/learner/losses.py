"""Policy losses: pure functions, tensors in, per-token loss and detached per-token statistics out.

Which loss for which staleness (versions between a sample and the update that it trains)? Below, "old" is the trainer's
policy at the start of the update, "rollout" the one that sampled; with one optimiser step a batch, "current" is "old".

================  ===============================  ===================================================================
loss              weight of a token's gradient     use it
================  ===============================  ===================================================================
ppo, grpo         current / old, clipped           staleness 0, several optimiser steps a batch (with one: reinforce)
gspo              the same, mean of the sequence   staleness 0; long sequences, mixtures of experts
kimi15            1, and a pull back to old        staleness 0, several optimiser steps a batch
reinforce         1                                staleness 0, one optimiser step a batch
decoupled_ppo     ppo's times old / rollout <= 2   staleness 1 to 8, several optimiser steps a batch
tis               current / rollout, at most 1     staleness 1 to 8; the safe default with async_ratio above 0
cispo             current / rollout, at most 1.2   staleness 1 to 8; keeps every token's gradient
topr              1 where the trajectory did well, staleness 2 and more, samples of any origin: good ones are imitated,
                  else the whole trajectory's      bad ones count less the less likely they have become
                  current / rollout, at most 1
weighted_topr     topr's, times w_pos or w_neg     the same, with a hand on the balance of good and bad
================  ===============================  ===================================================================

A sequence is a whole episode: where its tokens fill several rows of the batch, the ratio of a sequence-level loss is
that over all of them (`OtherRows`), whichever micro-batch or rank they are in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log importance ratios are clamped to plus/minus this before `exp`, which would otherwise overflow (e^20 is 5e8)."""


@dataclass(frozen=True, slots=True)
class OtherRows:
    """For each of b rows: what its sequence holds in *other* rows of the batch. All float [b], without gradient.

    Attributes:
        num_tokens: trainable tokens there.
        log_ratio: sum over them of logprobs - old_logprobs.
        rollout_log_ratio: sum over them of logprobs - rollout_logprobs.
    """

    num_tokens: Tensor
    log_ratio: Tensor
    rollout_log_ratio: Tensor


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a loss is a function of: b rows of t tokens.

    Attributes:
        logprobs: float [b, t] of the current policy; the only one that has a gradient.
        old_logprobs: float [b, t] of the trainer's policy just before the update.
        rollout_logprobs: float [b, t] of the sampler.
        advantages: float [b, t].
        loss_mask: bool [b, t]; where it is off the others may hold anything, NaN included.
        outcomes: float [b]; the return of the row's episode minus its baseline: whether it did well.
        other_rows: None where every sequence is one row.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    rollout_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor
    outcomes: Tensor
    other_rows: OtherRows | None = None


Statistics = dict[str, Tensor]
"""Detached [b, t] tensors, 0 where the mask is off, that the caller averages over the mask of the global batch. Every
loss reports ``clip_frac_low`` and ``clip_frac_high``: where its clip or cap binds, on either side; 0 if it has none."""

Loss = Callable[..., tuple[Tensor, Statistics]]
"""``loss(inputs, **options) -> (loss, statistics)``: loss [b, t], 0 with zero gradient where the mask is off. Options
are keyword-only numbers, or words of a Literal."""


def ppo(
    inputs: LossInputs, *, e_lo: float = 0.2, e_hi: float = 0.2, dual_clip: float | None = None
) -> tuple[Tensor, Statistics]:
    """PPO's clipped surrogate (arXiv 1707.06347, eq. 7); as grpo, with advantages within a group (2402.03300, eq. 3).

    ``-min(r A, clip(r, 1 - e_lo, 1 + e_hi) A)`` with ``r = exp(logprobs - old_logprobs)``.

    Args:
        inputs: see `LossInputs`.
        e_lo: clip range below 1.
        e_hi: clip range above 1 (clip-higher: 0.28; DAPO, arXiv 2503.14476).
        dual_clip: c > 1: where A < 0 the loss is bounded by ``-c A`` (usual value: 3; arXiv 1912.09729, eq. 5); None is
            off.

    Returns:
        The loss, and ``clip_frac_low``, ``clip_frac_high``: where the clip takes the gradient away (A < 0 and r below
        the range, A > 0 and r above it); with dual clip also ``dual_clip_frac``.
    """
    ratio = importance_ratio(inputs.logprobs, inputs.old_logprobs, inputs.loss_mask)
    return _surrogate(ratio, inputs, e_lo, e_hi, dual_clip)


def gspo(inputs: LossInputs, *, e_lo: float = 3e-4, e_hi: float = 4e-4) -> tuple[Tensor, Statistics]:
    """Group sequence policy optimisation: one ratio per sequence (arXiv 2507.18071, eq. 5 and 13).

    `ppo` with ``r = exp(mean of logprobs - old_logprobs over the sequence)``, in the form for per-token advantages:
    a token's ratio is ``sg(r) exp(logprobs - sg(logprobs))``. With one advantage per sequence and seq-mean-token-mean
    its gradient is that of the sequence form.

    Returns:
        The loss, `ppo`'s statistics, and ``sequence_ratio``.
    """
    mask = inputs.loss_mask
    total, num_tokens = _over_sequence(_log_ratio(inputs.logprobs, inputs.old_logprobs, mask), inputs, "log_ratio")
    ratio = (total / num_tokens.clamp(min=1)).exp().to(inputs.logprobs.dtype)
    logprobs = masked(inputs.logprobs, mask)
    loss, statistics = _surrogate(ratio * (logprobs - logprobs.detach()).exp(), inputs, e_lo, e_hi)
    return loss, statistics | {"sequence_ratio": masked(ratio.expand_as(loss), mask)}


def decoupled_ppo(
    inputs: LossInputs, *, e_lo: float = 0.2, e_hi: float = 0.2, dual_clip: float | None = None, w_max: float = 2.0
) -> tuple[Tensor, Statistics]:
    """`ppo` around the trainer's policy, weighted for the sampler's being older (AReaL, arXiv 2505.24298, eq. 5).

    ``w * ppo`` with ``w = min(exp(old_logprobs - rollout_logprobs), w_max)`` held constant: the clip range follows the
    policy that is being updated, and the weight corrects for the one that sampled. [w_max: ours.]

    Returns:
        The loss, and `ppo`'s statistics with ``weight`` (mean of w) and ``weight_capped``: where it reached ``w_max``.
    """
    weight = importance_ratio(inputs.old_logprobs, inputs.rollout_logprobs, inputs.loss_mask).detach()
    loss, statistics = ppo(inputs, e_lo=e_lo, e_hi=e_hi, dual_clip=dual_clip)
    capped = weight.clamp(max=w_max)
    statistics["weight"] = masked(capped, inputs.loss_mask)
    statistics["weight_capped"] = masked((weight > w_max).to(loss.dtype), inputs.loss_mask)
    return capped * loss, statistics


def tis(inputs: LossInputs, *, cap: float = 1.0) -> tuple[Tensor, Statistics]:
    """Truncated importance sampling (IMPALA, arXiv 1802.01561; https://fengyao.notion.site/off-policy-rl).

    ``-w A logprobs`` with the constant ``w = min(exp(logprobs - rollout_logprobs), cap)``.
    """
    ratio = importance_ratio(inputs.logprobs, inputs.rollout_logprobs, inputs.loss_mask).detach()
    return _weighted(ratio.clamp(max=cap), inputs, clipped_high=ratio > cap)


def cispo(inputs: LossInputs, *, e_lo: float = 1.0, e_hi: float = 0.2) -> tuple[Tensor, Statistics]:
    """Clipped importance weights, no clipped gradients (CISPO: MiniMax-M1, arXiv 2506.13585, eq. 4).

    ``-w A logprobs`` with the constant ``w = clip(exp(logprobs - rollout_logprobs), 1 - e_lo, 1 + e_hi)``. [Defaults
    ours: no lower bound, as the paper says; the paper gives no number for the upper one.]
    """
    ratio = importance_ratio(inputs.logprobs, inputs.rollout_logprobs, inputs.loss_mask).detach()
    low, high = 1.0 - e_lo, 1.0 + e_hi
    return _weighted(ratio.clamp(low, high), inputs, clipped_low=ratio < low, clipped_high=ratio > high)


def topr(inputs: LossInputs, *, level: Literal["trajectory", "token"] = "trajectory") -> tuple[Tensor, Statistics]:
    """Tapered off-policy REINFORCE: imitate what did well, unlearn the rest by ratio (arXiv 2503.14286, eq. 8).

    By the sign of the trajectory's ``outcomes``: positive: ``-A logprobs``; negative: ``-rho A logprobs`` with the
    constant ``rho = exp(min(sum of logprobs - rollout_logprobs over the trajectory, 0))``; zero: nothing.

    Args:
        inputs: see `LossInputs`.
        level: "token" takes rho of each token by itself.
    """
    return weighted_topr(inputs, level=level)


def weighted_topr(
    inputs: LossInputs,
    *,
    level: Literal["trajectory", "token"] = "trajectory",
    w_pos: float = 1.0,
    w_neg: float = 1.0,
) -> tuple[Tensor, Statistics]:
    """`topr` with the trajectories that did well weighted by w_pos, the others by w_neg."""
    log_ratio = _log_ratio(inputs.logprobs, inputs.rollout_logprobs, inputs.loss_mask).detach()
    if level == "trajectory":
        log_ratio = _over_sequence(log_ratio, inputs, "rollout_log_ratio")[0].expand_as(log_ratio)
    rho = log_ratio.clamp(max=0.0).exp().to(inputs.logprobs.dtype)
    sign = inputs.outcomes[:, None].sign()
    weight = w_pos * (sign > 0) + w_neg * (sign < 0) * rho
    return _weighted(weight, inputs, clipped_high=(sign < 0) & (log_ratio > 0))


def kimi15(inputs: LossInputs, *, tau: float = 0.1) -> tuple[Tensor, Statistics]:
    """REINFORCE with a quadratic pull back to the trainer's policy (Kimi k1.5, arXiv 2501.12599, eq. 3).

    ``-A logprobs + (tau / 2) (logprobs - old_logprobs)^2``.
    """
    loss, statistics = reinforce(inputs)
    distance = masked(inputs.logprobs, inputs.loss_mask) - masked(inputs.old_logprobs, inputs.loss_mask)
    return loss + tau / 2 * distance.square(), statistics


def reinforce(inputs: LossInputs) -> tuple[Tensor, Statistics]:
    """``-A logprobs``: the policy gradient as it stands, with no correction (Williams 1992)."""
    return _weighted(torch.ones_like(inputs.logprobs), inputs)


LOSSES: dict[str, Loss] = {
    "ppo": ppo,
    "grpo": ppo,  # GRPO's is the same surrogate; its advantages are what is its own
    "gspo": gspo,
    "decoupled_ppo": decoupled_ppo,
    "tis": tis,
    "cispo": cispo,
    "topr": topr,
    "weighted_topr": weighted_topr,
    "kimi15": kimi15,
    "reinforce": reinforce,
}

PULL_WITHOUT_ADVANTAGE: frozenset[str] = frozenset({"kimi15"})
"""Losses whose gradient is not zero where the advantage is: their rows of zero advantage must not be skipped."""

SEQUENCE_LEVEL: frozenset[str] = frozenset({"gspo", "topr", "weighted_topr"})
"""Losses that look at whole sequences, and need `OtherRows` where one fills several rows."""


def importance_ratio(logprobs: Tensor, behaviour_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    """Return ``exp(logprobs - behaviour_logprobs)``, [b, t], exactly 1 with zero gradient where the mask is off."""
    return _log_ratio(logprobs, behaviour_logprobs, loss_mask).exp()


def masked(values: Tensor, loss_mask: Tensor) -> Tensor:
    """Put 0 where the mask is off. Inputs go through this *before* any arithmetic: 0 * inf in a backward is NaN."""
    return torch.where(loss_mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def _log_ratio(logprobs: Tensor, behaviour_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    difference = masked(logprobs, loss_mask) - masked(behaviour_logprobs, loss_mask)
    return difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _over_sequence(
    log_ratio: Tensor, inputs: LossInputs, name: Literal["log_ratio", "rollout_log_ratio"]
) -> tuple[Tensor, Tensor]:
    """Return sum of ``log_ratio`` [b, t] over each row's sequence, and its number of tokens; float64 [b, 1]."""
    total = log_ratio.detach().sum(1, dtype=torch.float64)
    num_tokens = inputs.loss_mask.sum(1, dtype=torch.float64)
    if inputs.other_rows is not None:
        total = total + getattr(inputs.other_rows, name)
        num_tokens = num_tokens + inputs.other_rows.num_tokens
    return total[:, None], num_tokens[:, None]


def _surrogate(
    ratio: Tensor, inputs: LossInputs, e_lo: float, e_hi: float, dual_clip: float | None = None
) -> tuple[Tensor, Statistics]:
    """Return `ppo`'s loss and statistics for ``ratio`` [b, t]."""
    advantages = masked(inputs.advantages, inputs.loss_mask)
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1.0 - e_lo, 1.0 + e_hi) * advantages)
    statistics = {
        "clip_frac_low": (ratio < 1.0 - e_lo) & (advantages < 0),
        "clip_frac_high": (ratio > 1.0 + e_hi) & (advantages > 0),
    }
    if dual_clip is not None:
        bound = dual_clip * advantages
        statistics["dual_clip_frac"] = (advantages < 0) & (surrogate < bound)
        surrogate = torch.where(advantages < 0, torch.maximum(surrogate, bound), surrogate)
    loss = masked(-surrogate, inputs.loss_mask)
    return loss, {name: value.detach().to(loss.dtype) for name, value in statistics.items()}


def _weighted(
    weight: Tensor, inputs: LossInputs, *, clipped_low: Tensor | None = None, clipped_high: Tensor | None = None
) -> tuple[Tensor, Statistics]:
    """Return ``-weight A logprobs`` for a constant weight [b, t], and its statistics with ``weight``."""
    mask = inputs.loss_mask
    loss = -weight * masked(inputs.advantages, mask) * masked(inputs.logprobs, mask)
    none = torch.zeros_like(weight)
    return loss, {
        "clip_frac_low": none if clipped_low is None else masked(clipped_low.to(none.dtype), mask),
        "clip_frac_high": none if clipped_high is None else masked(clipped_high.to(none.dtype), mask),
        "weight": masked(weight, mask),
    }
