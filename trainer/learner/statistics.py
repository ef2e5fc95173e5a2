"""Training statistics: summed up over micro-batches and ranks, so that each is that of the global batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from rollcage.trainer.learner.losses import importance_ratio, masked

_SUM_W, _SUM_W2 = "behaviour ratio", "behaviour ratio squared"


@dataclass(slots=True)
class Totals:
    """Sums and maxima over the trainable tokens that one rank has seen.

    Attributes:
        num_tokens: number of them.
        sums: statistic -> sum over them.
        maxima: statistic -> greatest.
    """

    num_tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(
        self,
        *,
        logprobs: Tensor,
        old_logprobs: Tensor,
        rollout_logprobs: Tensor,
        entropy: Tensor,
        loss_mask: Tensor,
        loss_statistics: Mapping[str, Tensor],
    ) -> None:
        """Add one micro-batch. All tensors are [b, t] and detached."""
        if not loss_mask.any():
            return
        ratio = importance_ratio(logprobs, old_logprobs, loss_mask).double()
        behaviour_ratio = importance_ratio(logprobs, rollout_logprobs, loss_mask).double()
        gap = (masked(old_logprobs, loss_mask) - masked(rollout_logprobs, loss_mask)).abs()
        summed = {
            "importance_ratio": ratio,
            "approx_kl_k3": ratio - 1 - ratio.log(),
            "entropy": entropy,
            "logprob_gap": gap,
            _SUM_W: behaviour_ratio,
            _SUM_W2: behaviour_ratio.square(),
            **loss_statistics,
        }
        self.num_tokens += int(loss_mask.sum())
        for name, values in summed.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(values[loss_mask].double().sum())
        for name, values in (("importance_ratio", ratio), ("logprob_gap", gap)):
            self.maxima[name] = max(self.maxima.get(name, -math.inf), float(values[loss_mask].max()))


def summarize(parts: Iterable[Totals]) -> dict[str, float]:
    """Return the statistics of the global batch from the totals of all ranks; empty where no token was seen.

    ``importance_ratio_mean/max`` of r = exp(logprobs - old_logprobs); ``approx_kl_k3``, the mean of r - 1 - log r;
    ``ess`` = (sum w)^2 / (n sum w^2) with w = exp(logprobs - rollout_logprobs), 1 when on policy; ``entropy``;
    ``logprob_gap_mean/max`` of |old_logprobs - rollout_logprobs|: how far the sampler is from the trainer; and the
    means of the loss's own.
    """
    parts = list(parts)
    num_tokens = sum(part.num_tokens for part in parts)
    if num_tokens == 0:
        return {}
    sums: dict[str, float] = {}
    maxima: dict[str, float] = {}
    for part in parts:
        for name, value in part.sums.items():
            sums[name] = sums.get(name, 0.0) + value
        for name, value in part.maxima.items():
            maxima[name] = max(maxima.get(name, -math.inf), value)
    weight, squared_weight = sums.pop(_SUM_W), sums.pop(_SUM_W2)
    statistics = {name + "_mean" if name in maxima else name: value / num_tokens for name, value in sums.items()}
    statistics |= {f"{name}_max": value for name, value in maxima.items()}
    statistics["ess"] = weight**2 / (num_tokens * squared_weight)
    return statistics
