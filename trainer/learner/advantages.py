"""Advantage estimators: pure functions from a batch of complete groups to one advantage per token.

Every statistic is taken once per episode or turn, in float64, however many rows and tokens it fills.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.time_steps import Floats, discounted, episode_tokens, find_turns, members_of

Advantages = npt.NDArray[np.float32]
"""[B, T]; 0 where ``loss_mask`` is off."""

STD_EPSILON = 1e-6


def grpo(batch: Batch) -> Advantages:
    """``(R_i - mean) / (std + 1e-6)`` over the group (GRPO, arXiv 2402.03300).

    Over its surviving rollouts, unbiased std; 0 where all are equal, and in a group of one.
    """
    return _on_tokens(batch, _against_group(batch, _standardize))


def dr_grpo(batch: Batch) -> Advantages:
    """``R_i - mean`` over the group's surviving rollouts; 0 in a group of one (Dr. GRPO, arXiv 2503.20783)."""
    return _on_tokens(batch, _against_group(batch, _center))


def rloo(batch: Batch) -> Advantages:
    """``R_i`` minus the mean of the *other* rollouts of the group; 0 in a group of one (RLOO, arXiv 2402.14740)."""

    def leave_one_out(returns: Floats) -> Floats:
        baselines: Floats = (returns.sum() - returns) / (len(returns) - 1)
        return returns - baselines

    return _on_tokens(batch, _against_group(batch, leave_one_out))


def reinforce_pp(batch: Batch, *, kl_coef: float = 0.0, kl: npt.NDArray[np.floating[Any]] | None = None) -> Advantages:
    """``R_i`` minus the KL to a reference from the token on, whitened over the batch (REINFORCE++, arXiv 2501.03262).

    ``A_t = R_i - kl_coef * sum over the episode's trainable tokens s >= t of kl_s``, then `whiten`.

    Args:
        batch: rows of one episode in order.
        kl_coef: weight of the KL in the reward. [Default ours: 0, no reference model.]
        kl: [B, T], ``old_logprobs - ref_logprobs``; what stands where ``loss_mask`` is off does not count.

    Raises:
        ValueError: ``kl_coef`` without ``kl``.
    """
    if kl_coef and kl is None:
        raise ValueError("reinforce_pp with kl_coef needs kl")
    advantages = np.zeros(batch.loss_mask.shape)
    for episode in episode_tokens(batch):
        cost: float | Floats = 0.0
        if kl_coef and kl is not None:
            per_token = kl[episode.rows].ravel()[episode.trainable].astype(np.float64)
            cost = kl_coef * np.cumsum(per_token[::-1])[::-1]
        episode.place(float(batch.returns[episode.rows[0]]) - cost, advantages)
    return whiten(advantages, batch.loss_mask)


def remax(batch: Batch) -> Advantages:
    """``R_i`` minus the return of the group's greedy rollout, which is not trained on (ReMax, arXiv 2310.10505).

    Raises:
        ValueError: a group has no greedy return.
    """
    return _on_tokens(batch, _against_greedy(batch))


def gae(
    batch: Batch,
    *,
    values: npt.NDArray[np.floating[Any]],
    gamma: float = 1.0,
    lam: float = 1.0,
    bootstrap_truncated: bool = False,
    final_values: npt.NDArray[np.floating[Any]] | None = None,
) -> Advantages:
    """Generalised advantage estimation, over trainable tokens (GAE, arXiv 1506.02438, eq. 16).

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
    advantages = np.zeros(batch.loss_mask.shape)
    for episode in episode_tokens(batch):
        rows, after = episode.rows, 0.0
        if bootstrap_truncated and final_values is not None and batch.truncated[rows[-1]]:
            after = float(final_values[rows[-1]])
        before = np.append(values[rows].ravel()[episode.trainable].astype(np.float64), after)
        deltas = episode.rewards + gamma * before[1:] - before[:-1]
        episode.place(discounted(deltas, gamma * lam), advantages)
    return advantages.astype(np.float32)


def turn_return(batch: Batch, *, gamma: float = 0.95) -> Advantages:
    """Each turn's discounted return ``G_t = r_t + gamma G_{t+1}``, standardised over the turns of the batch.

    Every token of a turn has its turn's advantage; each turn counts once in mean and unbiased std. 0 where all are
    equal. [gamma: ours, as gigpo's.]
    """
    turns = find_turns(batch, gamma)
    return turns.on_tokens(batch, _standardize(turns.returns) if _differ(turns.returns) else 0 * turns.returns)


def gigpo(batch: Batch, *, gamma: float = 0.95, w_episode: float = 1.0, w_step: float = 1.0) -> Advantages:
    """Credit to the episode and to each turn, both within the group (GiGPO, arXiv 2505.10978).

    ``w_episode * grpo(R_i) + w_step * grpo(G_t over the turns of the group that answer the same observation)``, with
    the turn's discounted return ``G_t = r_t + gamma G_{t+1}``; the second is 0 where no other turn answers the same, or
    all of them have the same return. Episode statistics are taken once per episode, not once per turn.
    """
    turns = find_turns(batch, gamma)
    step = np.zeros(len(turns.returns))
    _, anchor = np.unique(np.stack([turns.groups, turns.anchors]), axis=1, return_inverse=True)
    for members in members_of(anchor.ravel()):
        if _differ(turns.returns[members]):
            step[members] = _standardize(turns.returns[members])
    return w_episode * grpo(batch) + turns.on_tokens(batch, w_step * step)


ADVANTAGES: dict[str, Callable[..., Advantages]] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "remax": remax,
    "gigpo": gigpo,
    "turn_return": turn_return,
    "gae": gae,
}

NEED_VALUES: frozenset[str] = frozenset({"gae"})
"""Estimators that need a critic's ``values``."""

NEED_KL: frozenset[str] = frozenset({"reinforce_pp"})
"""Estimators that need ``kl`` to a reference model where their ``kl_coef`` is not 0."""

NEED_GREEDY: frozenset[str] = frozenset({"remax"})
"""Estimators that need one greedy rollout of every task."""


def outcomes(batch: Batch, advantage: str) -> npt.NDArray[np.float32]:
    """Return whether each row's episode did well: its return minus a baseline, [B].

    The baseline is that of the estimator ``advantage`` where it has one for whole episodes: the greedy return for
    remax, the batch's mean for reinforce_pp and turn_return, and the group's mean for all others. [Ours.]
    """
    if advantage == "remax":
        return _against_greedy(batch).astype(np.float32)
    if advantage in ("reinforce_pp", "turn_return"):
        _, first_rows = np.unique(batch.episode_ids, return_index=True)
        returns = batch.returns[first_rows].astype(np.float64)
        centered = batch.returns - returns.mean() if _differ(returns) else np.zeros(len(batch))
        return centered.astype(np.float32)
    return _against_group(batch, _center).astype(np.float32)


def whiten(advantages: npt.NDArray[np.floating[Any]], loss_mask: npt.NDArray[np.bool_]) -> Advantages:
    """Shift and scale to mean 0 and unbiased std 1 over the batch's trainable tokens; zeros where all are equal."""
    chosen = advantages[loss_mask].astype(np.float64)
    whitened = np.zeros(advantages.shape, np.float32)
    if _differ(chosen):
        whitened[loss_mask] = _standardize(chosen)
    return whitened


def _against_group(batch: Batch, estimate: Callable[[Floats], Floats]) -> Floats:
    """Return what ``estimate`` makes of each group's returns, [B]; 0 where they are equal."""
    _, first_rows, episode_of_row = np.unique(batch.episode_ids, return_index=True, return_inverse=True)
    returns = batch.returns[first_rows].astype(np.float64)
    result = np.zeros(len(returns))
    for members in members_of(batch.group_ids[first_rows]):
        if _differ(returns[members]):
            result[members] = estimate(returns[members])
    return result[episode_of_row]


def _against_greedy(batch: Batch) -> Floats:
    missing = np.isnan(batch.greedy_returns)
    if missing.any():
        raise ValueError(f"no greedy return of group {batch.group_ids[missing][0]}: remax needs one for every group")
    return batch.returns.astype(np.float64) - batch.greedy_returns


def _on_tokens(batch: Batch, values: Floats) -> Advantages:
    """Give each row's value, [B], to all of its trainable tokens."""
    return np.where(batch.loss_mask, values[:, None], 0.0).astype(np.float32)


def _differ(values: Floats) -> bool:
    """Return whether there is anything to compare: equal values give exactly 0, without rounding noise."""
    return len(values) > 1 and bool(np.ptp(values) > 0)


def _center(values: Floats) -> Floats:
    centered: Floats = values - values.mean()
    return centered


def _standardize(values: Floats) -> Floats:
    standardized: Floats = (values - values.mean()) / (values.std(ddof=1) + STD_EPSILON)
    return standardized
