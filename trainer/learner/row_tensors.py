"""Rows of a batch as tensors on a rank's device, and what a model says of their trainable tokens back in its places."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rollcage.trainer.learner.deepspeed_engine import sum_over_ranks
from rollcage.trainer.learner.micro_batches import Rows

Bools = npt.NDArray[np.bool_]


def gather(
    token_ids: npt.NDArray[np.int64], loss_mask: Bools, rows: Rows, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return token ids and loss mask of ``rows``, cut to the last trainable token, on ``device``.

    No rows give a dummy of one token that weighs nothing, since every rank must run as many passes.
    """
    if len(rows) == 0:
        return torch.zeros((1, 2), dtype=torch.int64, device=device), torch.tensor([[False, True]], device=device)
    width = int(lengths(loss_mask[rows]).max())
    chosen = token_ids[rows, :width], loss_mask[rows, :width]
    return torch.from_numpy(chosen[0]).to(device), torch.from_numpy(chosen[1]).to(device)


def cut(whole: Tensor, rows: Rows, loss_mask: Tensor) -> Tensor:
    """Return ``rows`` of ``whole``, [B, T] or [B], as wide as their ``loss_mask`` and on its device; zeros for none."""
    if len(rows) == 0:
        return torch.zeros(loss_mask.shape[: whole.ndim], dtype=whole.dtype, device=loss_mask.device)
    return (whole[rows, : loss_mask.shape[1]] if whole.ndim == 2 else whole[rows]).to(loss_mask.device)


def place(flat: Tensor, loss_mask: Tensor) -> Tensor:
    """Put values of the trainable tokens, [N], to their places in [b, t]; 0 elsewhere."""
    return torch.zeros(loss_mask.shape, device=flat.device).masked_scatter(loss_mask, flat)


def lengths(loss_mask: Bools) -> npt.NDArray[np.int64]:
    """Return each row's length up to its last trainable token, [B]; 0 where there is none."""
    width = loss_mask.shape[1]
    return np.where(loss_mask.any(1), width - loss_mask[:, ::-1].argmax(1), 0)


def evaluate_rows(
    model: Callable[[Tensor, Tensor], Tensor],
    token_ids: npt.NDArray[np.int64],
    loss_mask: Bools,
    plan: Sequence[Rows],
    device: torch.device,
) -> npt.NDArray[np.float32]:
    """Return [B, T] of what ``model`` says of the trainable tokens, without gradient; 0 elsewhere.

    Args:
        model: (token_ids [b, t], loss_mask [b, t]) -> [N], one number for each trainable token in row order.
        token_ids: int64 [B, T].
        loss_mask: bool [B, T].
        plan: this rank's micro-batches; all ranks' together are the rows that are wanted.
        device: of the model.
    """
    result = torch.zeros(loss_mask.shape)
    with torch.no_grad():
        for rows in plan:
            ids, mask = gather(token_ids, loss_mask, rows, device)
            values = model(ids, mask)
            if len(rows):
                result[rows, : mask.shape[1]] = place(values, mask).cpu()
    return sum_over_ranks(result).numpy()
