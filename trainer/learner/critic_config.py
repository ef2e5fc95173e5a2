"""The critics' part of the learner's configuration."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal


@dataclass(frozen=True)
class CriticConfig:
    """The critics that advantage "gae" trains beside the policy: one for PPO, several small ones for AsyPPO.

    They share the policy's number types, ZeRO stage and offloading, and have optimisers of their own. Discount,
    lambda and what follows a truncated episode are options of the advantage: learner.advantage_options.
    """

    model: str = ""
    """What a critic's body is made of, without its output layer: a causal language model with the policy's tokens, as
    for model ("small-critic" and "small-critic-tiny" are smaller relatives of "small"); empty: the policy's model."""

    num_critics: int = 2
    """Critics, all of the same model. Each trains on a share of every prompt's responses; their mean is the value,
    their standard deviation the uncertainty. 1 is PPO: no uncertainty, no masks."""

    placement: Literal["learner", "own"] = "learner"
    """Where the critics are. learner: in the processes of the policy's ranks, each on the same device. own: in
    processes of their own, on a cluster actors (see ray.critic_gpus): they take none of the policy's memory, and train
    and judge a batch beside the passes that need no advantages. The numbers are the same."""

    num_ranks: int = 0
    """Processes of their own, which share the critics' work; 0: as many as the policy has."""

    gpus: str = ""
    """Numbers of the GPUs that processes of their own see, as 2,3; empty: all. On a cluster: ray.critic_gpus."""

    warmup_updates: int = 0
    """Updates at the start of the run in which only the critics are trained; the policy stays as it is."""

    advantage_mask_share: float = 0.2
    """Share of the trainable tokens whose advantage counts as 0: those on which the critics agree most. They stay in
    the aggregation's denominator."""

    entropy_mask_share: float = 0.2
    """Share of the trainable tokens that get no entropy bonus (entropy_coef): those on which the critics disagree
    most."""

    mask_over: Literal["batch", "response"] = "batch"
    """Where the most and the least certain tokens are looked for: in the whole batch, or in each response on its own.
    [Batch is our choice: the sources disagree.]"""

    aggregation: str = "token-mean"
    """How per-token value losses become one, as the learner's aggregation; over the critic's share. [Ours.]"""

    value_clip: float = 0.0
    """A value may gain nothing by moving further than this from where it was before the update; 0 is off."""

    lr: float = 1e-4
    """Learning rate after its warm-up. [Ours.]"""

    warmup_steps: int = 0
    """Optimiser steps over which it grows linearly."""

    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's moment decay rates. [Ours.]"""

    weight_decay: float = 0.0
    """AdamW's decoupled weight decay, on matrices only."""

    max_grad_norm: float = 1.0
    """The gradient of each critic is scaled down to this global norm; 0 is off."""

    epochs: int = 1
    """Passes over its share of each batch."""

    num_mini_batches: int = 1
    """Optimiser steps per pass, each on an equal part of the share's episodes."""

    histogram_edges: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
    """Edges of the bins in which the disagreement is reported."""

    def faults(self) -> Iterable[str]:
        """Yield what is wrong, each without the name of this part."""
        from rollcage.trainer.learner.aggregate import AGGREGATIONS

        for name in ("num_critics", "epochs", "num_mini_batches"):
            if not getattr(self, name) >= 1:
                yield f"{name} must be at least 1, not {getattr(self, name)}"
        for name in ("num_ranks", "warmup_updates", "warmup_steps", "value_clip", "weight_decay", "max_grad_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                yield f"{name} must be at least 0, not {getattr(self, name)}"
        for name in ("advantage_mask_share", "entropy_mask_share"):
            if not 0 <= getattr(self, name) <= 1:
                yield f"{name} must lie in [0, 1], not {getattr(self, name)}"
        if self.placement == "learner":
            for name in ("num_ranks", "gpus"):
                if getattr(self, name):
                    yield f"{name} goes with placement own"
        if not re.fullmatch(r"|\d+(,\d+)*", self.gpus):
            yield f"gpus must be numbers as 2,3, not {self.gpus!r}"
        if not 0 < self.lr < math.inf:
            yield f"lr must be above 0, not {self.lr}"
        if not all(0 <= beta < 1 for beta in self.betas):
            yield f"betas must lie in [0, 1), not {self.betas}"
        if self.aggregation not in AGGREGATIONS:
            yield f"aggregation {self.aggregation!r} is unknown (known: {', '.join(AGGREGATIONS)})"
        edges = self.histogram_edges
        if not all(low < high for low, high in pairwise(edges)):
            yield f"histogram_edges must rise, not {edges}"
