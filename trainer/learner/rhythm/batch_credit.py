"""Attention rhythm in the learner: one attention pass over the batch that is about to be trained on, and its credit.

The attention model is the policy itself, where it is: the rank's own weights, of the version that the update begins
with, run once without gradient and with its attention watched. So it is never out of step, nothing is synchronised
after an update, and it takes no memory and no device of its own; a second copy elsewhere would have to wait for the
same weights. The ranks share the rows, and what is of the batch (head sets, credit) is the same on all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.deepspeed_engine import sum_over_ranks
from rollcage.trainer.learner.micro_batches import Rows, plan_micro_batches
from rollcage.trainer.learner.rhythm.attention import Curves, attention_curves
from rollcage.trainer.learner.rhythm.credit import NEEDS, Signals, amplify, credit
from rollcage.trainer.learner.rhythm.heads import mean_over, pick_heads
from rollcage.trainer.learner.row_tensors import evaluate_rows, gather, lengths

_NOISE = 0x517E
"""Parts the draw of random credit from those of mini-batches, which have the same seed and version."""


@dataclass(frozen=True, slots=True)
class Credited:
    """What an update gets; of the whole batch, the same on all ranks.

    Attributes:
        advantages: float32 [B, T], amplified.
        gamma: float32 [B, T]; 1 where nothing was amplified.
        signals: what it was taken from, float32 [B, T]; 0 in rows that have no advantage.
        statistics: for the metrics.
    """

    advantages: npt.NDArray[np.float32]
    gamma: npt.NDArray[np.float32]
    signals: Signals
    statistics: dict[str, float]

    @property
    def quantities(self) -> dict[str, npt.NDArray[np.float32]]:
        """What is shown of each token."""
        curves = {"waad": self.signals.waad, "fai": self.signals.fai}
        return {"credit": self.gamma, **{name: curve.numpy() for name, curve in curves.items() if curve is not None}}


class RhythmCredit:
    """Gives the tokens of a batch their credit. Every call must be made on all ranks with the same batch.

    Rows whose advantages are all 0 (groups of equal returns) have nothing to multiply: they are not looked at, and do
    not count for head sets and statistics.

    Args:
        engine: DeepSpeed engine around a `TokenLogprobs`.
        config: of the learner; `RhythmConfig.credit` is not none.
        rank: this rank's number.
    """

    def __init__(self, engine: Any, config: LearnerConfig, rank: int) -> None:
        self._engine, self._config, self._rank = engine, config, rank
        self.heads: tuple[Tensor, Tensor] | None = None
        """Local and global heads, bool [L, H] each, once they are fixed; what a checkpoint must hold."""

    def apply(self, batch: Batch, advantages: npt.NDArray[np.float32], policy_version: int) -> Credited:
        """Return the batch's ``advantages``, float32 [B, T], multiplied by gamma, and what that came from."""
        start_s, config = time.perf_counter(), self._config.rhythm
        mask = torch.from_numpy(batch.loss_mask & (advantages != 0).any(1, keepdims=True))
        signals = self._signals(batch, mask, policy_version)
        pass_s = time.perf_counter() - start_s
        options = {name: getattr(config, name) for name in _OPTIONS}
        gamma = credit(config.credit, signals, **options)
        tokens = max(1, int(mask.sum()))
        statistics = {
            "rhythm_share_amplified": int((gamma[mask] > 1).sum()) / tokens,
            "rhythm_gamma_mean": float(gamma[mask].double().sum()) / tokens,
            "rhythm_seconds": pass_s,
        }
        for name in ("waad", "fai"):
            if (curve := getattr(signals, name)) is not None:
                statistics[f"rhythm_{name}_mean"] = float(curve[mask].double().sum()) / tokens
        amplified = amplify(torch.from_numpy(advantages), gamma, config.sign)
        return Credited(amplified.numpy(), gamma.numpy(), signals, statistics)

    def _signals(self, batch: Batch, mask: Tensor, policy_version: int) -> Signals:
        """Return what the configured credit needs of the rows that have a token in ``mask``, bool [B, T]."""
        needs = NEEDS[self._config.rhythm.credit]
        plan = self._plan(batch, np.flatnonzero(mask.any(1).numpy()))
        if "noise" in needs:
            rng = np.random.default_rng((self._config.seed, policy_version, 0, _NOISE))
            noise = torch.zeros(mask.shape)
            noise[torch.from_numpy(batch.loss_mask)] = torch.from_numpy(rng.random(int(batch.loss_mask.sum()))).float()
            return Signals(mask, noise=noise)
        if "entropies" in needs:

            def entropies(token_ids: Tensor, loss_mask: Tensor) -> Tensor:
                result: Tensor = self._engine(token_ids, loss_mask)[1]
                return result

            device = self._engine.device
            found = evaluate_rows(entropies, batch.token_ids, batch.loss_mask, plan, device)
            return Signals(mask, entropies=torch.from_numpy(found))
        waad, fai = self._curves(batch, mask, plan)
        return Signals(mask, waad=waad, fai=fai)

    def _curves(self, batch: Batch, mask: Tensor, plan: list[Rows]) -> tuple[Tensor, Tensor]:
        """Return WAAD of the local and FAI of the global heads, [B, T] each."""
        parts: list[tuple[Rows, Curves]] = []
        means = torch.zeros(2, *mask.shape)

        def keep(rows: Rows, curves: Curves, heads: tuple[Tensor, Tensor]) -> None:
            for mean, curve, chosen in zip(means, (curves.waad, curves.fai), heads, strict=True):
                mean[rows, : curve.shape[-1]] = mean_over(curve, chosen).cpu()

        spans = torch.zeros(0, dtype=torch.float64)
        for rows in plan:
            curves = self._pass(batch, rows)
            if curves is None:
                continue
            if self.heads is None:
                spans = curves.spans.double().cpu() + (spans if spans.numel() else 0)
                parts.append((rows, curves))
            else:
                keep(rows, curves, self.heads)
        if self.heads is None and mask.any():
            heads = pick_heads(self._sum_spans(spans), self._config.rhythm.head_share)
            for rows, curves in parts:
                keep(rows, curves, heads)
            if self._config.rhythm.head_sets == "fixed":
                self.heads = heads
        summed = torch.where(mask, sum_over_ranks(means), 0.0)
        return summed[0], summed[1]

    def _sum_spans(self, spans: Tensor) -> Tensor:
        """Return the spans summed over ranks; one without rows has none, and does not know their shape."""
        shape = sum_over_ranks(torch.tensor([*spans.shape, 1] if spans.ndim == 2 else [0, 0, 0]))
        if spans.ndim != 2:
            spans = torch.zeros([int(size) for size in shape[:2] // shape[2]], dtype=torch.float64)
        return sum_over_ranks(spans)

    def _pass(self, batch: Batch, rows: Rows) -> Curves | None:
        """Return the curves of one micro-batch; None of an empty one, which only ZeRO 3 has to run."""
        module, config = self._engine.module, self._config.rhythm
        divided = self._config.zero_stage == 3
        if len(rows) == 0 and not divided:
            return None
        token_ids, loss_mask = gather(batch.token_ids, batch.loss_mask, rows, self._engine.device)
        forward: Callable[[], object] | None = None
        if (
            divided
        ):  # weights come together only as DeepSpeed's engine runs its whole module: one token a row at its end
            longer = torch.nn.functional.pad(token_ids, (0, 1))
            last = torch.zeros_like(longer, dtype=torch.bool)
            last[:, -1] = True

            def forward() -> object:
                return self._engine(longer, last)

        with module.precision(token_ids.device):
            curves = attention_curves(
                module.policy,
                token_ids,
                None,
                loss_mask,
                window=config.window,
                h_lo=config.h_lo,
                h_hi=config.h_hi,
                forward=forward,
            )
        return curves if len(rows) else None

    def _plan(self, batch: Batch, rows: Rows) -> list[Rows]:
        config, long = self._config, lengths(batch.loss_mask)
        return plan_micro_batches(rows, long, config.num_ranks, config.micro_batch_tokens)[self._rank]


_OPTIONS = ("q", "gain", "backshift", "k", "tau_waad", "tau_delta", "h_lo", "h_hi")
"""Fields of `RhythmConfig` that are options of `credit`."""
