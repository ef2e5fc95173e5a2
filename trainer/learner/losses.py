"""Policy losses and regularisers: pure functions, tensors in, per-token loss and detached per-token statistics out.

Sources: PPO, arXiv 1707.06347, eq. 7; dual clip, arXiv 1912.09729, eq. 5; clip-higher (e_hi > e_lo), DAPO, arXiv
2503.14476; GRPO, arXiv 2402.03300, eq. 3; KL estimators k1, k2, k3: J. Schulman, http://joschu.net/blog/kl-approx.html;
decoupled PPO: AReaL, arXiv 2505.24298, eq. 5; TIS: F. Yao et al., https://fengyao.notion.site/off-policy-rl, and
IMPALA's truncation, arXiv 1802.01561.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log importance ratios are clamped to plus/minus this before `exp`, which would otherwise overflow (e^20 is 5e8)."""

Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""``loss(logprobs, old_logprobs, rollout_logprobs, advantages, loss_mask, **options) -> (loss, statistics)``.

All five inputs and the returned loss are [B, T]; ``loss_mask`` is bool, the others float32. The loss is 0 with zero
gradient where ``loss_mask`` is off, whatever stands there. ``statistics`` are detached [B, T] tensors, 0 where the mask
is off, that the caller averages over the mask of the global batch.
"""


def ppo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    e_lo: float = 0.2,
    e_hi: float = 0.2,
    dual_clip: float | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clipped surrogate: ``-min(r A, clip(r, 1 - e_lo, 1 + e_hi) A)`` with ``r = exp(logprobs - old_logprobs)``.

    Args:
        logprobs: [B, T] current policy's.
        old_logprobs: [B, T] the trainer's own, just before the update.
        rollout_logprobs: [B, T] the sampler's; not used by this loss.
        advantages: [B, T].
        loss_mask: bool [B, T].
        e_lo: clip range below 1.
        e_hi: clip range above 1 (DAPO's clip-higher: 0.28).
        dual_clip: c > 1: where A < 0 the loss is bounded by ``-c A`` (usual value: 3); None is off.

    Returns:
        The per-token loss, and ``clip_frac_low``, ``clip_frac_high``: where the clip takes the gradient away (A < 0 and
        r below the range, A > 0 and r above it); with dual clip also ``dual_clip_frac``.
    """
    ratio = importance_ratio(logprobs, old_logprobs, loss_mask)
    advantages = masked(advantages, loss_mask)
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1.0 - e_lo, 1.0 + e_hi) * advantages)
    statistics = {
        "clip_frac_low": (ratio < 1.0 - e_lo) & (advantages < 0),
        "clip_frac_high": (ratio > 1.0 + e_hi) & (advantages > 0),
    }
    if dual_clip is not None:
        bound = dual_clip * advantages
        statistics["dual_clip_frac"] = (advantages < 0) & (surrogate < bound)
        surrogate = torch.where(advantages < 0, torch.maximum(surrogate, bound), surrogate)
    return masked(-surrogate, loss_mask), {name: value.detach().float() for name, value in statistics.items()}


def grpo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    e_lo: float = 0.2,
    e_hi: float = 0.2,
) -> tuple[Tensor, dict[str, Tensor]]:
    """GRPO's surrogate: that of `ppo`, on advantages that compare the rollouts of one task with each other."""
    return ppo(logprobs, old_logprobs, rollout_logprobs, advantages, loss_mask, e_lo=e_lo, e_hi=e_hi)


def decoupled_ppo(
    logprobs: Tensor,
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    e_lo: float = 0.2,
    e_hi: float = 0.2,
    w_max: float = 2.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Off-policy PPO: `ppo`'s surrogate around the trainer's own policy, weighted by how far the sampler was behind.

    ``w * ppo`` with ``w = min(exp(old_logprobs - rollout_logprobs), w_max)`` held constant: the clip range follows the
    policy that is being updated, and the weight corrects for the one that sampled.

    Returns:
        The per-token loss, and `ppo`'s statistics with ``weight_capped``: where w reached ``w_max``.
    """
    weight = importance_ratio(old_logprobs, rollout_logprobs, loss_mask).detach()
    loss, statistics = ppo(logprobs, old_logprobs, rollout_logprobs, advantages, loss_mask, e_lo=e_lo, e_hi=e_hi)
    statistics["weight_capped"] = masked((weight > w_max).float(), loss_mask)
    return weight.clamp(max=w_max) * loss, statistics


def tis(
    logprobs: Tensor,
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    loss_mask: Tensor,
    *,
    cap: float = 1.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Truncated importance sampling: ``-w A logprobs``, w the constant ``min(exp(logprobs - rollout_logprobs), cap)``.

    Returns:
        The per-token loss, and ``weight_capped``: where w reached ``cap``.
    """
    ratio = importance_ratio(logprobs, rollout_logprobs, loss_mask).detach()
    loss = -ratio.clamp(max=cap) * masked(advantages, loss_mask) * masked(logprobs, loss_mask)
    return loss, {"weight_capped": masked((ratio > cap).float(), loss_mask)}


LOSSES: dict[str, Loss] = {"ppo": ppo, "grpo": grpo, "decoupled_ppo": decoupled_ppo, "tis": tis}

PULL_WITHOUT_ADVANTAGE: frozenset[str] = frozenset()
"""Losses whose gradient is not zero where the advantage is: their rows of zero advantage must not be skipped."""


def kl_k1(logprobs: Tensor, ref_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    """Per-token KL penalty ``d = logprobs - ref_logprobs``: unbiased, can be negative. [B, T] in and out."""
    return masked(logprobs, loss_mask) - masked(ref_logprobs, loss_mask)


def kl_k2(logprobs: Tensor, ref_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    """Per-token KL penalty ``d^2 / 2``: never negative; its gradient is the KL divergence's. [B, T] in and out."""
    return kl_k1(logprobs, ref_logprobs, loss_mask).square() / 2


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    """Per-token KL penalty ``exp(-d) - 1 + d``: unbiased and never negative. [B, T] in and out."""
    d = kl_k1(logprobs, ref_logprobs, loss_mask)
    return torch.expm1((-d).clamp(max=MAX_LOG_RATIO)) + d


KL_PENALTIES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}


def entropy_bonus(entropy: Tensor, loss_mask: Tensor, coef: float) -> Tensor:
    """Per-token loss ``-coef * H``. Entropy and result [B, T]; ``loss_mask`` may leave out tokens that get no bonus."""
    return -coef * masked(entropy, loss_mask)


def importance_ratio(logprobs: Tensor, behaviour_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    """Return ``exp(logprobs - behaviour_logprobs)``, [B, T], exactly 1 with zero gradient where the mask is off."""
    log_ratio = masked(logprobs, loss_mask) - masked(behaviour_logprobs, loss_mask)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


def masked(values: Tensor, loss_mask: Tensor) -> Tensor:
    """Put 0 where the mask is off. Inputs go through this *before* any arithmetic: 0 * inf in a backward is NaN."""
    return torch.where(loss_mask, values, torch.zeros((), dtype=values.dtype, device=values.device))
