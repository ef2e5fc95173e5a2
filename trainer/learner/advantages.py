"""Advantage estimators: pure functions from a batch of complete groups to one advantage per token.

Sources: GRPO, arXiv 2402.03300; RLOO, arXiv 2402.14740; Dr. GRPO, arXiv 2503.20783; GAE, arXiv 1506.02438, eq. 16.
Every statistic is taken once per episode, however many rows its tokens fill.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rollcage.trainer.learner.batch import Batch

Floats = npt.NDArray[np.float64]
Advantages = npt.NDArray[np.float32]
"""[B, T]; 0 where ``loss_mask`` is off."""

STD_EPSILON = 1e-6


def grpo(batch: Batch) -> Advantages:
    """``(R_i - mean) / (std + 1e-6)`` over the group's surviving rollouts, unbiased std; 0 where all are equal.

    A group of one gets 0.
    """
    return _per_group(batch, lambda returns: (returns - returns.mean()) / (returns.std(ddof=1) + STD_EPSILON))


def dr_grpo(batch: Batch) -> Advantages:
    """``R_i - mean`` over the group's surviving rollouts; 0 in a group of one."""
    return _per_group(batch, lambda returns: returns - returns.mean())


def rloo(batch: Batch) -> Advantages:
    """``R_i`` minus the mean return of the *other* rollouts of the group (leave one out); 0 in a group of one."""
    return _per_group(batch, lambda returns: returns - (returns.sum() - returns) / (len(returns) - 1))


def gae(
    batch: Batch,
    *,
    values: npt.NDArray[np.floating[Any]],
    gamma: float = 1.0,
    lam: float = 1.0,
    bootstrap_truncated: bool = False,
    final_values: npt.NDArray[np.floating[Any]] | None = None,
) -> Advantages:
    """Generalised advantage estimation over the trainable tokens of each episode.

    ``delta_t = r_t + gamma V_{t+1} - V_t`` and ``A_t = delta_t + gamma lam A_{t+1}``, where t + 1 is the episode's next
    trainable token, in this row or the next: prompt and observation tokens are no time steps. A reward that stands on
    one of those is moved to the last trainable token before it. The critic's targets are ``advantages + values``.

    Args:
        batch: rows of one episode in order.
        values: [B, T]; ``values[b, t]`` is the value *before* token t (read from the hidden state of token t - 1).
        gamma: discount per trainable token.
        lam: 1: return minus value; 0: one-step error.
        bootstrap_truncated: let a truncated episode go on with ``final_values`` instead of 0. [Default ours: the
            sources are silent.]
        final_values: [B] value after a row's last token; the one of an episode's last row is used.

    Raises:
        ValueError: ``bootstrap_truncated`` without ``final_values``.
    """
    if bootstrap_truncated and final_values is None:
        raise ValueError("bootstrap_truncated needs final_values")
    advantages = np.zeros(batch.loss_mask.shape, np.float32)
    for episode_id in np.unique(batch.episode_ids):
        rows = np.flatnonzero(batch.episode_ids == episode_id)
        trainable = batch.loss_mask[rows].ravel()
        if not trainable.any():
            continue
        step_of_token = np.maximum(np.cumsum(trainable) - 1, 0)
        rewards = np.bincount(step_of_token, weights=batch.rewards[rows].ravel())
        after = 0.0
        if bootstrap_truncated and final_values is not None and batch.truncated[rows[-1]]:
            after = float(final_values[rows[-1]])
        before = np.append(values[rows].ravel()[trainable].astype(np.float64), after)
        deltas = rewards + gamma * before[1:] - before[:-1]
        estimate = np.empty(len(deltas))
        running = 0.0
        for step in range(len(deltas) - 1, -1, -1):
            running = deltas[step] + gamma * lam * running
            estimate[step] = running
        placed = np.zeros(trainable.shape)
        placed[trainable] = estimate
        advantages[rows] = placed.reshape(len(rows), -1)
    return advantages


ADVANTAGES: dict[str, Callable[..., Advantages]] = {"grpo": grpo, "rloo": rloo, "dr_grpo": dr_grpo, "gae": gae}

NEED_VALUES: frozenset[str] = frozenset({"gae"})
"""Estimators that need a critic's ``values``."""


def whiten(advantages: Advantages, loss_mask: npt.NDArray[np.bool_]) -> Advantages:
    """Shift and scale to mean 0 and unbiased std 1 over the batch's trainable tokens; zeros where all are equal."""
    chosen = advantages[loss_mask].astype(np.float64)
    whitened = np.zeros_like(advantages)
    if len(chosen) > 1 and np.ptp(chosen) > 0:
        whitened[loss_mask] = (chosen - chosen.mean()) / (chosen.std(ddof=1) + STD_EPSILON)
    return whitened


def _per_group(batch: Batch, estimate: Callable[[Floats], Floats]) -> Advantages:
    """Give each episode what ``estimate`` makes of its group's returns, on all of its trainable tokens."""
    _, first_rows, episode_of_row = np.unique(batch.episode_ids, return_index=True, return_inverse=True)
    returns, groups = batch.returns[first_rows].astype(np.float64), batch.group_ids[first_rows]
    advantages = np.zeros(len(returns))
    for group_id in np.unique(groups):
        members = np.flatnonzero(groups == group_id)
        if len(members) > 1 and np.ptp(returns[members]) > 0:  # equal returns: exactly 0, without rounding noise
            advantages[members] = estimate(returns[members])
    return np.where(batch.loss_mask, advantages[episode_of_row][:, None], 0.0).astype(np.float32)
