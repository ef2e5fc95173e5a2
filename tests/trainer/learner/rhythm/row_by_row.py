"""Credit of a batch by the plain road: each row alone through the whole model for curves of every head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.rhythm.attention import attention_curves
from rollcage.trainer.learner.rhythm.credit import Signals, credit
from rollcage.trainer.learner.rhythm.heads import mean_over, pick_heads

SHORT: dict[str, Any] = {"window": 3, "h_lo": 2, "h_hi": 6}
"""Windows for responses of ten tokens."""


def gamma_row_by_row(
    policy: Any, batch: Batch, rows: Sequence[int], heads: tuple[Tensor, Tensor] | None = None
) -> tuple[np.ndarray, tuple[Tensor, Tensor]]:
    """Return coupled gamma, [B, T], with windows `SHORT`, and the heads: those given, or those of the rows."""
    found = {}
    for row in rows:
        length = int(batch.attention_mask[row].sum())
        token_ids, mask = torch.tensor(batch.token_ids[[row], :length]), torch.tensor(batch.loss_mask[[row], :length])
        found[row] = mask, attention_curves(policy, token_ids, None, mask, **SHORT)
    local, global_ = heads or pick_heads(sum(curves.spans for _, curves in found.values()), 0.3)
    gamma = np.ones(batch.loss_mask.shape, np.float32)
    for row, (mask, curves) in found.items():
        signals = Signals(mask, mean_over(curves.waad, local), mean_over(curves.fai, global_))
        own = credit("coupled", signals, h_lo=SHORT["h_lo"], h_hi=SHORT["h_hi"])
        gamma[row, : mask.shape[1]] = own[0].numpy()
    return gamma, (local, global_)
