"""What an update has before it knows advantages, and what each of its optimiser steps moves the policy towards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.losses import OtherRows


@dataclass(frozen=True, slots=True)
class Target:
    """What one optimiser step moves the policy towards: of the whole batch, the same on all ranks.

    Attributes:
        advantages: float32 [B, T].
        outcomes: float32 [B]; see `LossInputs`.
        weights: float32 [B, T], the aggregation's; 0 outside of the mini-batch.
        old_logprobs: float32 [B, T]; None where they are the current ones.
        ref_logprobs: float32 [B, T]; None without a reference model.
        other_rows: see `LossInputs`; each tensor [B].
        entropy_mask: bool [B, T], where there is an entropy bonus; None: on every trainable token.
    """

    advantages: Tensor
    outcomes: Tensor
    weights: Tensor
    old_logprobs: Tensor | None
    ref_logprobs: Tensor | None
    other_rows: OtherRows | None
    entropy_mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Begun:
    """What an update has before it knows advantages.

    Attributes:
        batch: what it is made on.
        policy_version: how often the policy has been trained before.
        start_s, end_s: when this began and ended, in seconds of a clock of this process.
        ref_logprobs: float32 [B, T]; None without a reference model.
        old_logprobs: float32 [B, T]; None where they are not needed, or cost less later.
    """

    batch: Batch
    policy_version: int
    start_s: float
    end_s: float
    ref_logprobs: npt.NDArray[np.float32] | None
    old_logprobs: npt.NDArray[np.float32] | None
