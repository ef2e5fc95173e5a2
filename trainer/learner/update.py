"""One policy update on one rank: its share of the batch through model, loss and backward pass, then the optimiser."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rollcage.trainer.learner.advantages import ADVANTAGES, whiten
from rollcage.trainer.learner.aggregate import aggregate, token_weights
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.deepspeed_engine import backward, optimizer_step, sum_over_ranks
from rollcage.trainer.learner.losses import LOSSES, PULL_WITHOUT_ADVANTAGE, entropy_bonus
from rollcage.trainer.learner.micro_batches import Rows, plan_micro_batches, split_episodes
from rollcage.trainer.learner.statistics import Totals


@dataclass(slots=True)
class MicroBatch:
    """Rows cut to their last trainable token, on the rank's device; all [b, t].

    ``weights`` are the aggregation's; ``old_logprobs`` None where they are the current ones.
    """

    token_ids: Tensor
    loss_mask: Tensor
    advantages: Tensor
    rollout_logprobs: Tensor
    old_logprobs: Tensor | None
    weights: Tensor


class PolicyUpdate:
    """Trains and evaluates the policy in ``engine``. Every call must be made on all ranks with the same batch.

    Args:
        engine: DeepSpeed engine around a `TokenLogprobs`.
        config: of the learner.
        rank: this rank's number.
    """

    def __init__(self, engine: Any, config: LearnerConfig, rank: int) -> None:
        self._engine, self._config, self._rank = engine, config, rank
        self._loss = LOSSES[config.loss]

    def train(self, batch: Batch, policy_version: int) -> tuple[Totals, dict[str, float]]:
        """Update the policy, which has trained ``policy_version`` times before.

        Returns:
            The token statistics of this rank's share, and the statistics that are global already.

        Raises:
            FloatingPointError: the gradient is not finite; the weights are of no use any more.
        """
        start_s, config = time.perf_counter(), self._config
        advantages = ADVANTAGES[config.advantage](batch)
        if config.whiten_advantages:
            advantages = whiten(advantages, batch.loss_mask)
        if config.mask_cut:
            advantages = np.where(batch.cut_by_length[:, None], np.float32(0), advantages)
        pulls = batch.loss_mask  # tokens that have a gradient; rows without any stay out of the model
        if config.entropy_coef == 0 and config.loss not in PULL_WITHOUT_ADVANTAGE:
            pulls = pulls & (advantages != 0)
        pulling = np.any(pulls, axis=1)
        mini_batches = list(self._mini_batches(batch, policy_version))
        old_logprobs = None if len(mini_batches) == 1 else self.logprobs(batch, pulling)
        totals, loss, grad_norm, lr = Totals(), 0.0, 0.0, self._engine.get_lr()[0]
        for rows in mini_batches:
            in_mini_batch = np.zeros((len(batch), 1), np.bool_)
            in_mini_batch[rows] = True
            weights = token_weights(
                torch.from_numpy(batch.loss_mask & in_mini_batch),
                config.aggregation,
                sequence_ids=torch.from_numpy(batch.episode_ids),
                max_length=config.max_length,
            )
            plan = self._plan(batch, rows[pulling[rows]])
            for micro_rows in plan:
                micro = self._gather(batch, micro_rows, advantages, old_logprobs, weights)
                loss += self._backward(micro, totals, is_last=micro_rows is plan[-1])
            grad_norm += optimizer_step(self._engine, config) / len(mini_batches)
        staleness = policy_version - batch.start_versions[np.unique(batch.episode_ids, return_index=True)[1]]
        return totals, {
            "loss": float(sum_over_ranks(torch.tensor([loss / len(mini_batches)]))),
            "grad_norm": grad_norm,
            "lr": lr,
            "staleness_mean": float(staleness.mean()),
            "staleness_max": float(staleness.max()),
            "num_tokens": int(batch.loss_mask.sum()),
            "num_rows_skipped": int(len(batch) - pulling.sum()),
            "seconds": time.perf_counter() - start_s,
        }

    def logprobs(self, batch: Batch, wanted: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.float32]:
        """Return [B, T] log-probabilities of the ``wanted`` rows (default: all) under the current weights, else 0."""
        rows = np.flatnonzero(batch.loss_mask.any(1) if wanted is None else wanted)
        result = torch.zeros(batch.loss_mask.shape)
        with torch.no_grad():
            for micro_rows in self._plan(batch, rows):
                micro = self._gather(batch, micro_rows)
                logprobs, _ = self._engine(micro.token_ids, micro.loss_mask)
                if len(micro_rows):
                    result[micro_rows, : micro.loss_mask.shape[1]] = _place(logprobs, micro.loss_mask).cpu()
        return sum_over_ranks(result).numpy()

    def _mini_batches(self, batch: Batch, policy_version: int) -> Iterator[Rows]:
        """Yield the rows of each optimiser step; the draw depends on the seed and the version alone."""
        config = self._config
        for epoch in range(config.epochs):
            rng = np.random.default_rng((config.seed, policy_version, epoch))
            yield from split_episodes(batch.episode_ids, config.num_mini_batches, rng)

    def _plan(self, batch: Batch, rows: Rows) -> list[Rows]:
        """Return this rank's micro-batches; as many on every rank, since ZeRO communicates in each."""
        lengths = _lengths(batch.loss_mask)
        return plan_micro_batches(rows, lengths, self._config.num_ranks, self._config.micro_batch_tokens)[self._rank]

    def _backward(self, micro: MicroBatch, totals: Totals, *, is_last: bool) -> float:
        """Add one micro-batch's gradient; returns its share of the loss."""
        with_entropy = self._config.entropy_coef != 0
        flat_logprobs, flat_entropy = self._engine(micro.token_ids, micro.loss_mask, with_entropy)
        logprobs, entropy = _place(flat_logprobs, micro.loss_mask), _place(flat_entropy, micro.loss_mask)
        old = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs
        token_loss, loss_statistics = self._loss(
            logprobs, old, micro.rollout_logprobs, micro.advantages, micro.loss_mask, **self._config.loss_options
        )
        if with_entropy:
            token_loss = token_loss + entropy_bonus(entropy, micro.loss_mask, self._config.entropy_coef)
        loss = aggregate(token_loss, micro.weights)
        # DeepSpeed averages over ranks; the weights are the global batch's already, so the sum is what is wanted.
        backward(self._engine, loss * self._config.num_ranks, is_last=is_last)
        totals.add(
            logprobs=logprobs.detach(),
            old_logprobs=old,
            rollout_logprobs=micro.rollout_logprobs,
            entropy=entropy.detach(),
            loss_mask=micro.loss_mask & (micro.weights != 0),  # not the token of a dummy
            loss_statistics=loss_statistics,
        )
        return float(loss.detach())

    def _gather(
        self,
        batch: Batch,
        rows: Rows,
        advantages: npt.NDArray[np.float32] | None = None,
        old_logprobs: npt.NDArray[np.float32] | None = None,
        weights: Tensor | None = None,
    ) -> MicroBatch:
        """Cut ``rows`` out of the batch; no rows give a dummy of one token that weighs nothing."""
        device = self._engine.device
        if len(rows) == 0:
            zeros = torch.zeros((1, 2), device=device)
            mask = torch.tensor([[False, True]], device=device)
            return MicroBatch(zeros.long(), mask, zeros, zeros, zeros, zeros)
        width = int(_lengths(batch.loss_mask[rows]).max())

        def cut(array: npt.NDArray[Any]) -> Tensor:
            return torch.from_numpy(array[rows, :width]).to(device)

        unused = np.zeros((len(batch), 0), np.float32)
        return MicroBatch(
            token_ids=cut(batch.token_ids),
            loss_mask=cut(batch.loss_mask),
            advantages=cut(unused if advantages is None else advantages),
            rollout_logprobs=cut(batch.rollout_logprobs),
            old_logprobs=None if old_logprobs is None else cut(old_logprobs),
            weights=cut(unused) if weights is None else weights[rows, :width].to(device),
        )


def _lengths(loss_mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return each row's length up to its last trainable token, [B]; 0 where there is none."""
    width = loss_mask.shape[1]
    return np.where(loss_mask.any(1), width - loss_mask[:, ::-1].argmax(1), 0)


def _place(flat: Tensor, loss_mask: Tensor) -> Tensor:
    """Put values of the trainable tokens, [N], to their places in [b, t]; 0 elsewhere."""
    return torch.zeros(loss_mask.shape, device=flat.device).masked_scatter(loss_mask, flat)
