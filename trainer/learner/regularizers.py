"""What a loss may carry beside the policy's own: KL penalties to a reference model, and the entropy bonus.

Sources: k1, k2, k3: J. Schulman, http://joschu.net/blog/kl-approx.html.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rollcage.trainer.learner.losses import MAX_LOG_RATIO, masked


def kl_k1(logprobs: Tensor, ref_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    """Per-token KL penalty ``d = logprobs - ref_logprobs``: unbiased, can be negative. [b, t] in and out."""
    return masked(logprobs, loss_mask) - masked(ref_logprobs, loss_mask)


def kl_k2(logprobs: Tensor, ref_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    """Per-token KL penalty ``d^2 / 2``: never negative; its gradient is the KL divergence's. [b, t] in and out."""
    return kl_k1(logprobs, ref_logprobs, loss_mask).square() / 2


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    """Per-token KL penalty ``exp(-d) - 1 + d``: unbiased and never negative. [b, t] in and out."""
    d = kl_k1(logprobs, ref_logprobs, loss_mask)
    return torch.expm1((-d).clamp(max=MAX_LOG_RATIO)) + d


KL_PENALTIES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}


def entropy_bonus(entropy: Tensor, loss_mask: Tensor, coef: float) -> Tensor:
    """Per-token loss ``-coef * H``. Entropy and result [b, t]; ``loss_mask`` may leave out tokens that get no bonus."""
    return -coef * masked(entropy, loss_mask)
