"""The critics' part of an update, on one rank: train each on its share, then read values, uncertainty and masks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rollcage.trainer.learner.advantages import gae
from rollcage.trainer.learner.aggregate import aggregate, token_weights
from rollcage.trainer.learner.asyppo import (
    correlation,
    disagreement,
    disagreement_histogram,
    explained_variance,
    keep_certain,
    keep_uncertain,
    mean_value,
    response_shares,
    value_loss,
)
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.critic_engines import critic_optimizer
from rollcage.trainer.learner.deepspeed_engine import backward, optimizer_step, sum_over_ranks
from rollcage.trainer.learner.micro_batches import Rows, plan_micro_batches, split_episodes
from rollcage.trainer.learner.row_tensors import Bools, cut, evaluate_rows, gather, lengths, place

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the critics say of a batch, the same on all ranks.

    Attributes:
        values: float32 [B, T], the critics' mean before each trainable token; 0 elsewhere.
        final_values: float32 [B], after a truncated row's last token; 0 for others, and without `bootstrap_truncated`.
        advantage_mask: bool [B, T]; off where the advantage counts as 0 (`keep_uncertain`).
        entropy_mask: bool [B, T]; off where there is no entropy bonus (`keep_certain`).
        statistics: see `CriticEnsemble.judge`.
    """

    values: Floats
    final_values: Floats
    advantage_mask: Bools
    entropy_mask: Bools
    statistics: dict[str, float]


class CriticEnsemble:
    """Trains and asks the critics in ``engines``. Every call must be made on all ranks with the same batch.

    Args:
        engines: DeepSpeed engines, each around a `TokenValues`.
        config: of the learner; its advantage is one that needs values.
        rank: this rank's number.
    """

    def __init__(self, engines: Sequence[Any], config: LearnerConfig, rank: int) -> None:
        self._engines, self._config, self._rank = engines, config, rank
        self._optimizer = critic_optimizer(config)
        options = config.advantage_options
        self._gamma, self._lam = float(options.get("gamma", 1.0)), float(options.get("lam", 1.0))
        self._bootstrap = bool(options.get("bootstrap_truncated", False))

    def judge(self, batch: Batch, policy_version: int) -> Judgement:
        """Train the critics on ``batch``, then judge it: the order of AsyPPO (arXiv 2510.01656, algorithm 1).

        Targets, and values that a clip holds on to, are those before the update, whatever the epochs and mini-batches.

        Returns:
            With these statistics. Before the update, on a batch that no critic has seen:
            ``critic_M_explained_variance`` of each critic's values and ``critic_mean_explained_variance`` of their mean
            against the true returns, ``critic_return_correlation`` of the mean with them (each left out where it is not
            defined, as in a batch of equal returns). Of the update: ``critic_M_loss`` (mean over optimiser steps),
            ``critic_M_grad_norm`` and ``critic_lr``. After it: ``critic_value_mean`` and
            ``critic_explained_variance_after`` of the values that the policy is trained with, and with several critics
            ``critic_disagreement_mean`` and ``_max``, ``critic_disagreement_from_X`` for each bin of `histogram_edges`,
            and ``critic_advantage_masked`` and ``critic_entropy_masked``, shares of the trainable tokens.
            ``critic_seconds`` is all of it.

        Raises:
            FloatingPointError: a critic's gradient is not finite.
        """
        start_s, critic, mask = time.perf_counter(), self._config.critic, torch.from_numpy(batch.loss_mask)
        before, final_before = self._values(batch)
        value = mean_value(before).numpy()
        targets = torch.from_numpy(self._gae(batch, value, final_before, self._lam) + value)
        returns = torch.from_numpy(self._gae(batch, np.zeros_like(value), np.zeros(len(batch), np.float32), 1.0))
        statistics = {
            **{f"critic_{m}_explained_variance": explained_variance(v, returns, mask) for m, v in enumerate(before)},
            "critic_mean_explained_variance": explained_variance(mean_value(before), returns, mask),
            "critic_return_correlation": correlation(mean_value(before), returns, mask),
            "critic_lr": self._engines[0].get_lr()[0],
        }
        for m, mine in enumerate(self._shares(batch)):
            loss, grad_norm = self._train(m, batch, mine, targets, before[m], policy_version)
            statistics |= {f"critic_{m}_loss": loss, f"critic_{m}_grad_norm": grad_norm}
        after, final_values = self._values(batch)
        values, advantage_mask, entropy_mask = mean_value(after), torch.ones_like(mask), torch.ones_like(mask)
        num_tokens = max(1, int(mask.sum()))
        statistics |= {
            "critic_value_mean": float(values[mask].sum()) / num_tokens,
            "critic_explained_variance_after": explained_variance(values, returns, mask),
        }
        if len(self._engines) > 1:
            sigma = disagreement(after, mask)
            responses = torch.from_numpy(batch.episode_ids) if critic.mask_over == "response" else None
            advantage_mask = keep_uncertain(sigma, mask, critic.advantage_mask_share, responses)
            entropy_mask = keep_certain(sigma, mask, critic.entropy_mask_share, responses)
            shares = disagreement_histogram(sigma, mask, critic.histogram_edges)
            statistics |= {
                "critic_disagreement_mean": float(sigma.double().sum()) / num_tokens,
                "critic_disagreement_max": float(sigma.max()) if sigma.numel() else 0.0,
                "critic_advantage_masked": int((~advantage_mask).sum()) / num_tokens,
                "critic_entropy_masked": int((~entropy_mask).sum()) / num_tokens,
                **{
                    f"critic_disagreement_from_{edge:g}": share
                    for edge, share in zip((0.0, *critic.histogram_edges), shares, strict=True)
                },
            }
        statistics = {name: value for name, value in statistics.items() if not math.isnan(value)}
        statistics["critic_seconds"] = time.perf_counter() - start_s
        return Judgement(values.numpy(), final_values, advantage_mask.numpy(), entropy_mask.numpy(), statistics)

    def _shares(self, batch: Batch) -> Iterator[Bools]:
        """Yield the rows, bool [B], that each critic trains on: whole episodes."""
        _, first_rows, episode_of_row = np.unique(batch.episode_ids, return_index=True, return_inverse=True)
        shares = response_shares(torch.from_numpy(batch.group_ids[first_rows]), len(self._engines)).numpy()
        for m in range(len(self._engines)):
            yield (shares == m)[episode_of_row]

    def _gae(self, batch: Batch, values: Floats, final_values: Floats, lam: float) -> Floats:
        return gae(
            batch,
            values=values,
            gamma=self._gamma,
            lam=lam,
            bootstrap_truncated=self._bootstrap,
            final_values=final_values,
        )

    def _values(self, batch: Batch) -> tuple[Tensor, Floats]:
        """Return every critic's values, float32 [M, B, T], and the mean value after each truncated row, [B]."""
        size, width = batch.loss_mask.shape
        token_ids = np.pad(batch.token_ids, ((0, 0), (0, 1)))  # one more column: the value after the last token
        wanted = np.pad(batch.loss_mask, ((0, 0), (0, 1)))
        ends = batch.attention_mask.sum(1)
        bootstrapped = np.flatnonzero(batch.truncated & (ends > 0)) if self._bootstrap else np.zeros(0, np.int64)
        wanted[bootstrapped, ends[bootstrapped]] = True
        rows = np.flatnonzero(wanted.any(1))
        per_critic = [
            evaluate_rows(engine, token_ids, wanted, self._plan(rows, wanted), engine.device)
            for engine in self._engines
        ]
        final_values = np.zeros(size, np.float32)
        final_values[bootstrapped] = np.mean([v[bootstrapped, ends[bootstrapped]] for v in per_critic], 0)
        values = [np.where(batch.loss_mask, v[:, :width], np.float32(0)) for v in per_critic]
        return torch.from_numpy(np.stack(values)), final_values

    def _train(
        self, m: int, batch: Batch, mine: Bools, targets: Tensor, old_values: Tensor, policy_version: int
    ) -> tuple[float, float]:
        """Train critic ``m`` on the rows ``mine``; returns loss and gradient norm, means over its optimiser steps."""
        engine, critic = self._engines[m], self._config.critic
        steps = list(self._mini_batches(batch, np.flatnonzero(mine), (policy_version, m)))
        loss, grad_norm = 0.0, 0.0
        for rows in steps:
            in_step = np.zeros((len(batch), 1), np.bool_)
            in_step[rows] = True
            weights = token_weights(
                torch.from_numpy(batch.loss_mask & in_step),
                critic.aggregation,
                sequence_ids=torch.from_numpy(batch.episode_ids),
                max_length=self._config.max_length,
            )
            plan = self._plan(rows[batch.loss_mask[rows].any(1)], batch.loss_mask)
            for micro_rows in plan:
                token_ids, mask = gather(batch.token_ids, batch.loss_mask, micro_rows, engine.device)
                values = place(engine(token_ids, mask), mask)
                token_loss = value_loss(
                    values, cut(targets, micro_rows, mask), cut(old_values, micro_rows, mask), critic.value_clip
                )
                part = aggregate(token_loss, cut(weights, micro_rows, mask))
                # DeepSpeed averages over ranks; the weights are the global batch's already, as for the policy.
                backward(engine, part * self._config.num_ranks, is_last=micro_rows is plan[-1])
                loss += float(part.detach()) / len(steps)
            grad_norm += optimizer_step(engine, self._optimizer) / len(steps)
        return float(sum_over_ranks(torch.tensor([loss], dtype=torch.float64))), grad_norm

    def _mini_batches(self, batch: Batch, rows: Rows, seed: tuple[int, int]) -> Iterator[Rows]:
        """Yield the rows of each optimiser step; none where the share is empty."""
        critic = self._config.critic
        for epoch in range(critic.epochs if len(rows) else 0):
            rng = np.random.default_rng((self._config.seed, *seed, epoch))
            for part in split_episodes(batch.episode_ids[rows], critic.num_mini_batches, rng):
                yield rows[part]

    def _plan(self, rows: Rows, loss_mask: Bools) -> list[Rows]:
        """Return this rank's micro-batches."""
        config = self._config
        return plan_micro_batches(rows, lengths(loss_mask), config.num_ranks, config.micro_batch_tokens)[self._rank]
