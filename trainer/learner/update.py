"""One policy update on one rank: its share of the batch through model, loss and backward pass, then the optimiser."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rollcage.trainer.learner.advantages import ADVANTAGES, outcomes, whiten
from rollcage.trainer.learner.aggregate import aggregate, token_weights
from rollcage.trainer.learner.annotating import Annotating
from rollcage.trainer.learner.annotations import SampleAnnotations
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.critics import CriticEnsemble, Judgement
from rollcage.trainer.learner.deepspeed_engine import backward, optimizer_step, sum_over_ranks
from rollcage.trainer.learner.losses import (
    LOSSES,
    MAX_LOG_RATIO,
    PULL_WITHOUT_ADVANTAGE,
    SEQUENCE_LEVEL,
    LossInputs,
    OtherRows,
)
from rollcage.trainer.learner.micro_batches import Rows, plan_micro_batches, split_episodes
from rollcage.trainer.learner.regularizers import KL_PENALTIES, entropy_bonus
from rollcage.trainer.learner.rhythm.attention_model import AttentionModel
from rollcage.trainer.learner.rhythm.attention_rank import Reading
from rollcage.trainer.learner.rhythm.batch_credit import BatchCredit, RhythmCredit
from rollcage.trainer.learner.row_tensors import cut, evaluate_rows, gather, lengths, place
from rollcage.trainer.learner.statistics import Totals
from rollcage.trainer.learner.update_inputs import Begun, Target

TokenModel = Callable[..., tuple[Tensor, Tensor]]
"""(token_ids, loss_mask) -> log-probabilities and entropies of the trainable tokens, as `TokenLogprobs` has it."""


class PolicyUpdate:
    """Trains and evaluates the policy in ``engine``. Every call must be made on all ranks with the same batch.

    Args:
        engine: DeepSpeed engine around a `TokenLogprobs`.
        config: of the learner.
        rank: this rank's number.
        reference: the reference model, on the engine's device; there where ``config.needs_reference``, else None.
        critics: there where ``config.needs_critics``, but for ones in processes of their own; else None.
        attention_model: there where it is a copy in this process, else None.

    Raises:
        ValueError: ``reference`` or ``critics`` is not as the configuration asks.
    """

    def __init__(
        self,
        engine: Any,
        config: LearnerConfig,
        rank: int,
        reference: TokenModel | None = None,
        critics: CriticEnsemble | None = None,
        attention_model: AttentionModel | None = None,
    ) -> None:
        self._engine, self._config, self._rank = engine, config, rank
        self._reference, self._critics = reference, critics
        self._loss = LOSSES[config.loss]
        credit = config.rhythm.credit
        self.rhythm = None if credit == "none" else RhythmCredit(engine, config, rank, attention_model)
        self.annotations: list[SampleAnnotations] = []
        """Of the last update."""
        if config.needs_reference != (reference is not None):
            raise ValueError(f"needs_reference is {config.needs_reference}, reference is {reference!r}")
        are_inside = config.critic.placement == "learner"
        if (config.needs_critics and are_inside) != (critics is not None):
            raise ValueError(f"needs_critics is {config.needs_critics}, critics are {critics!r}")

    def begin(self, batch: Batch, policy_version: int) -> None:
        """Do what needs no advantages of the update on ``batch`` that `train` makes then, while critics judge it.

        Args:
            batch: what comes next.
            policy_version: how often the policy has been trained before.
        """
        start_s, config = time.perf_counter(), self._config
        warms_up = config.warms_up(policy_version)
        if self.rhythm is not None and not warms_up:
            self.rhythm.begin(batch)
        ref_logprobs = None if self._reference is None else self._logprobs(self._reference, batch)
        # Critics leave hardly a row without advantage; where rows may have none, or credit is read from the same pass,
        # old log-probabilities come later.
        reads = self.rhythm is not None and config.rhythm.placement == "learner"
        num_steps = config.epochs * min(config.num_mini_batches, len(np.unique(batch.episode_ids)))
        ahead = config.needs_critics and not warms_up and not reads and num_steps > 1
        old_logprobs = self.logprobs(batch) if config.kl_in_reward or ahead else None
        self._begun = Begun(batch, policy_version, start_s, time.perf_counter(), ref_logprobs, old_logprobs)

    def train(
        self, judgement: Judgement | None = None, reading: Reading | None = None
    ) -> tuple[Totals, dict[str, float]]:
        """Update the policy on the batch that `begin` got; first its critics, where this process has any.

        While the critics warm up the policy takes no optimiser step, and stays as it is.

        Args:
            judgement: of critics in processes of their own.
            reading: of an attention model in a process of its own.

        Returns:
            The token statistics of this rank's share, and the statistics that are global already.

        Raises:
            FloatingPointError: the gradient is not finite; the weights are of no use any more.
        """
        config, begun = self._config, self._begun
        batch, policy_version = begun.batch, begun.policy_version
        ref_logprobs, old_logprobs = begun.ref_logprobs, begun.old_logprobs
        warms_up, wait_s = config.warms_up(policy_version), time.perf_counter() - begun.end_s
        if self._critics is not None:
            judgement = self._critics.judge(batch, policy_version)
        advantages = self._advantages(batch, old_logprobs, ref_logprobs, judgement)
        pulls = batch.loss_mask  # tokens that have a gradient; rows without any stay out of the model
        if config.entropy_coef == 0 and config.kl_coef == 0 and config.loss not in PULL_WITHOUT_ADVANTAGE:
            pulls = pulls & (advantages != 0)
        pulling = np.any(pulls, axis=1)
        draw = config.seed, policy_version
        self._annotating = Annotating(batch, pulling, config.annotated_samples, draw)
        split = _split_rows(batch) if config.loss in SEQUENCE_LEVEL else np.zeros(len(batch), np.bool_)
        mini_batches = [] if warms_up else list(self._mini_batches(batch, policy_version))
        num_steps = max(1, len(mini_batches))
        rhythm = None
        if self.rhythm is not None and not warms_up:
            rhythm = self.rhythm.start(batch, advantages, policy_version, reading)
        if num_steps == 1:
            old_logprobs = None  # the current ones; taken where they are, the ratio is exactly 1
        elif rhythm is not None and not rhythm.is_complete:  # credit is that of the policy before the first step
            old_logprobs = self._logprobs(self._engine, batch, pulling | split, rhythm)
            rhythm.is_complete = True
        elif old_logprobs is None:
            old_logprobs = self.logprobs(batch, pulling | split)
        credited = rhythm.finish() if rhythm is not None and rhythm.is_complete else None
        advantages = advantages if credited is None else credited.advantages
        crediting = rhythm if credited is None else None  # in the only step
        totals, loss, grad_norm, lr = Totals(), 0.0, 0.0, self._engine.get_lr()[0]
        for rows in mini_batches:
            in_mini_batch = np.zeros((len(batch), 1), np.bool_)
            in_mini_batch[rows] = True
            target = Target(
                advantages=torch.from_numpy(advantages),
                outcomes=torch.from_numpy(outcomes(batch, config.advantage)),
                weights=token_weights(
                    torch.from_numpy(batch.loss_mask & in_mini_batch),
                    config.aggregation,
                    sequence_ids=torch.from_numpy(batch.episode_ids),
                    max_length=config.max_length,
                ),
                old_logprobs=None if old_logprobs is None else torch.from_numpy(old_logprobs),
                ref_logprobs=None if ref_logprobs is None else torch.from_numpy(ref_logprobs),
                other_rows=self._other_rows(batch, split & in_mini_batch[:, 0], old_logprobs),
                entropy_mask=None if judgement is None else torch.from_numpy(judgement.entropy_mask),
            )
            plan = self._plan(batch, rows[pulling[rows]])
            for micro_rows in plan:
                loss += self._backward(batch, micro_rows, target, totals, crediting, is_last=micro_rows is plan[-1])
            grad_norm += optimizer_step(self._engine, config) / num_steps
        if crediting is not None:
            credited = crediting.finish()
            advantages = credited.advantages
        self.annotations = self._annotating.finish(
            {"advantages": advantages, **({} if credited is None else credited.quantities)}
        )
        staleness = policy_version - batch.start_versions[np.unique(batch.episode_ids, return_index=True)[1]]
        return totals, {
            "loss": float(sum_over_ranks(torch.tensor([loss / num_steps]))),
            "grad_norm": grad_norm,
            "lr": lr,
            "staleness_mean": float(staleness.mean()),
            "staleness_max": float(staleness.max()),
            "num_tokens": int(batch.loss_mask.sum()),
            "num_rows_skipped": len(batch) if warms_up else int(len(batch) - pulling.sum()),
            **({} if judgement is None else judgement.statistics),
            **({} if credited is None else credited.statistics),
            **({"wait_seconds": wait_s} if config.apart else {}),
            "seconds": time.perf_counter() - begun.start_s,
        }

    def logprobs(self, batch: Batch, wanted: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.float32]:
        """Return [B, T] log-probabilities of the ``wanted`` rows (default: all) under the current weights, else 0."""
        return self._logprobs(self._engine, batch, wanted)

    def _logprobs(
        self,
        model: TokenModel,
        batch: Batch,
        wanted: npt.NDArray[np.bool_] | None = None,
        rhythm: BatchCredit | None = None,
    ) -> npt.NDArray[np.float32]:
        """Let ``model`` say it; ``rhythm`` reads the rows' credit from the same pass, which must be the policy's."""
        plan = self._plan(batch, np.flatnonzero(batch.loss_mask.any(1) if wanted is None else wanted))
        passes, device = iter(plan), self._engine.device

        def logprobs(token_ids: Tensor, loss_mask: Tensor) -> Tensor:
            rows = next(passes)
            return (model(token_ids, loss_mask) if rhythm is None else rhythm.run(rows, token_ids, loss_mask))[0]

        return evaluate_rows(logprobs, batch.token_ids, batch.loss_mask, plan, device)

    def _advantages(
        self,
        batch: Batch,
        old_logprobs: npt.NDArray[np.float32] | None,
        ref_logprobs: npt.NDArray[np.float32] | None,
        judgement: Judgement | None,
    ) -> npt.NDArray[np.float32]:
        config = self._config
        options: dict[str, Any] = dict(config.advantage_options)
        if config.kl_in_reward and old_logprobs is not None and ref_logprobs is not None:
            options["kl"] = old_logprobs - ref_logprobs
        if judgement is not None:
            options |= {"values": judgement.values, "final_values": judgement.final_values}
        advantages = ADVANTAGES[config.advantage](batch, **options)
        if config.whiten_advantages:
            advantages = whiten(advantages, batch.loss_mask)
        if config.mask_cut:
            advantages = np.where(batch.cut_by_length[:, None], np.float32(0), advantages)
        return advantages if judgement is None else advantages * judgement.advantage_mask

    def _other_rows(
        self, batch: Batch, split: npt.NDArray[np.bool_], old_logprobs: npt.NDArray[np.float32] | None
    ) -> OtherRows | None:
        """Return what a sequence-level loss must know of the rows of an episode that it does not see, each [B].

        Such rows may be in other micro-batches and on other ranks, so they go through the model once more, ahead.
        """
        if not split.any():
            return None
        current, mask = self.logprobs(batch, split), batch.loss_mask & split[:, None]

        def elsewhere(values: npt.NDArray[np.floating[Any]]) -> Tensor:
            own = np.where(mask, values, 0).clip(-MAX_LOG_RATIO, MAX_LOG_RATIO).sum(1, dtype=np.float64)
            return torch.from_numpy(np.bincount(batch.episode_ids, weights=own)[batch.episode_ids] - own)

        return OtherRows(
            num_tokens=elsewhere(mask.astype(np.float64)),
            log_ratio=elsewhere(current - (current if old_logprobs is None else old_logprobs)),
            rollout_log_ratio=elsewhere(current - batch.rollout_logprobs),
        )

    def _mini_batches(self, batch: Batch, policy_version: int) -> Iterator[Rows]:
        """Yield the rows of each optimiser step; the draw depends on the seed and the version alone."""
        config = self._config
        for epoch in range(config.epochs):
            rng = np.random.default_rng((config.seed, policy_version, epoch))
            yield from split_episodes(batch.episode_ids, config.num_mini_batches, rng)

    def _plan(self, batch: Batch, rows: Rows) -> list[Rows]:
        """Return this rank's micro-batches; as many on every rank, since ZeRO communicates in each."""
        config, long = self._config, lengths(batch.loss_mask)
        return plan_micro_batches(rows, long, config.num_ranks, config.micro_batch_tokens)[self._rank]

    def _backward(
        self, batch: Batch, rows: Rows, target: Target, totals: Totals, rhythm: BatchCredit | None, *, is_last: bool
    ) -> float:
        """Add one micro-batch's gradient, with the credit that ``rhythm`` reads; returns its share of the loss."""
        config = self._config
        with_entropy = config.entropy_coef != 0
        token_ids, mask = gather(batch.token_ids, batch.loss_mask, rows, self._engine.device)
        run = self._engine if rhythm is None else partial(rhythm.run, rows)
        flat_logprobs, flat_entropy = run(token_ids, mask, with_entropy)
        logprobs, entropy = place(flat_logprobs, mask), place(flat_entropy, mask)

        def here(whole: Tensor) -> Tensor:
            return cut(whole, rows, mask)

        weights, others, advantages = here(target.weights), target.other_rows, here(target.advantages)
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=logprobs.detach() if target.old_logprobs is None else here(target.old_logprobs),
            rollout_logprobs=here(torch.from_numpy(batch.rollout_logprobs)),
            advantages=advantages if rhythm is None else rhythm.amplify(advantages, rows, mask),
            loss_mask=mask,
            outcomes=here(target.outcomes),
            other_rows=others
            and OtherRows(here(others.num_tokens), here(others.log_ratio), here(others.rollout_log_ratio)),
        )
        self._annotating.see(rows, inputs.old_logprobs)
        token_loss, loss_statistics = self._loss(inputs, **config.loss_options)
        if with_entropy:
            rewarded = mask if target.entropy_mask is None else mask & here(target.entropy_mask)
            token_loss = token_loss + entropy_bonus(entropy, rewarded, config.entropy_coef)
        if config.kl_coef and target.ref_logprobs is not None:
            kl = KL_PENALTIES[config.kl_penalty](logprobs, here(target.ref_logprobs), mask)
            token_loss = token_loss + config.kl_coef * kl
            loss_statistics["ref_kl"] = kl.detach()
        loss = aggregate(token_loss, weights)
        # DeepSpeed averages over ranks; the weights are the global batch's already, so the sum is what is wanted.
        backward(self._engine, loss * config.num_ranks, is_last=is_last)
        totals.add(
            logprobs=logprobs.detach(),
            old_logprobs=inputs.old_logprobs,
            rollout_logprobs=inputs.rollout_logprobs,
            entropy=entropy.detach(),
            loss_mask=mask & (weights != 0),  # not the token of a dummy
            loss_statistics=loss_statistics,
        )
        return float(loss.detach())


def _split_rows(batch: Batch) -> npt.NDArray[np.bool_]:
    """Return which rows, [B], have a trainable token and belong to an episode with several such rows."""
    trainable = batch.loss_mask.any(1)
    return trainable & (np.bincount(batch.episode_ids, weights=trainable)[batch.episode_ids] > 1)
