"""Attention rhythm in the learner: credit for the tokens of a batch, read in a pass that the update makes anyway.

The attention model is the policy itself, where it is: the rank's own weights, of the version that the update begins
with. So it is never out of step, nothing is synchronised after an update, and it takes no memory and no device of its
own. Where the update makes one optimiser step, credit comes out of the training pass, between forward and backward;
where it makes several, out of the pass for the old log-probabilities. Only to pick the heads, every so many updates,
there is a pass of its own. The ranks share the rows, and what is of the batch is the same on all of them.

With a device of its own the attention model is a copy (see `AttentionModel`), which has run before the update does; so
it has in a process of its own (see `AttentionRank`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
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
from rollcage.trainer.learner.rhythm.attention import MeanCurves, attention_curves, mean_curves
from rollcage.trainer.learner.rhythm.attention_model import AttentionModel, Found
from rollcage.trainer.learner.rhythm.attention_rank import Reading
from rollcage.trainer.learner.rhythm.config import RhythmConfig
from rollcage.trainer.learner.rhythm.credit import NEEDS, Signals, amplify, credit
from rollcage.trainer.learner.rhythm.heads import Heads, mean_over, pick_heads, sample_layers
from rollcage.trainer.learner.row_tensors import cut, gather, lengths, place

_NOISE = 0x517E
"""Parts the draw of random credit from those of mini-batches, which have the same seed and version."""


@dataclass(frozen=True, slots=True)
class Credited:
    """What an update got; of the whole batch, the same on all ranks.

    Attributes:
        advantages: float32 [B, T], amplified.
        gamma: float32 [B, T]; 1 where nothing was amplified.
        signals: what it was taken from, float32 [B, T] each; 0 in rows that have no advantage.
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
    """Gives the tokens of batch after batch their credit. Calls must be made on all ranks with the same batch.

    Args:
        engine: DeepSpeed engine around a `TokenLogprobs`.
        config: of the learner; `RhythmConfig.credit` is not none.
        rank: this rank's number.
        attention_model: there where `RhythmConfig.device` is not empty.
    """

    def __init__(
        self, engine: Any, config: LearnerConfig, rank: int, attention_model: AttentionModel | None = None
    ) -> None:
        self._engine, self._config, self._rank = engine, config, rank
        self._attention_model = attention_model
        self._running: Future[Found] | None = None
        self._layers = sample_layers(engine.module.policy.config.get_text_config().num_hidden_layers)
        self.heads: Heads | None = None
        """Once they are picked; what a checkpoint must hold."""

    def begin(self, batch: Batch) -> None:
        """Let the attention model begin with ``batch``, where it has a device of its own; `start` comes next."""
        if self._attention_model is not None:
            plan = self._plan(batch, np.flatnonzero(batch.loss_mask.any(1)))
            self._running = self._attention_model.start(batch, plan, self._layers)

    def start(
        self,
        batch: Batch,
        advantages: npt.NDArray[np.float32],
        policy_version: int,
        reading: Reading | None = None,
    ) -> BatchCredit:
        """Return what gives ``batch`` its credit in this update; picks the heads first, where that is due.

        Rows whose ``advantages``, float32 [B, T], are all 0 (groups of equal returns) have nothing to multiply: they
        get no credit, and do not count for statistics, nor for the heads that are picked by a pass of the policy's.
        ``reading`` is what an attention model in a process of its own has found.
        """
        start_s, config = time.perf_counter(), self._config.rhythm
        needs = NEEDS[config.credit]
        mask = torch.from_numpy(batch.loss_mask & (advantages != 0).any(1, keepdims=True))
        found = None if self._running is None else self._running.result(self._config.call_timeout_s)
        self._running = None
        reads = "waad" in needs or "fai" in needs
        due = self.heads is None or config.picks_heads(policy_version)
        if reading is not None and mask.any():
            self.heads = reading.heads
        elif reads and due and mask.any():
            if found is None:
                spans = self._spans(batch, np.flatnonzero(mask.any(1).numpy()))
            else:
                spans = [curves.spans.double().cpu() for _, curves in found]
            self.heads = pick_heads(_sum(spans), config.head_share)
        local, global_ = self.heads if reads and self.heads is not None else (None, None)
        noise = None
        if "noise" in needs:
            rng = np.random.default_rng((self._config.seed, policy_version, 0, _NOISE))
            noise = torch.zeros(mask.shape)
            noise[torch.from_numpy(batch.loss_mask)] = torch.from_numpy(rng.random(int(batch.loss_mask.sum()))).float()

        def watch(response_mask: Tensor) -> AbstractContextManager[MeanCurves]:
            return mean_curves(
                self._engine.module.policy,
                response_mask,
                self._layers,
                local if "waad" in needs else None,
                global_ if "fai" in needs else None,
                window=config.window,
                h_lo=config.h_lo,
                h_hi=config.h_hi,
            )

        running = BatchCredit(self._engine, config, mask, torch.from_numpy(advantages), noise, watch)
        if found is not None and local is not None and global_ is not None:
            running.is_complete = True
            for rows, curves in found:
                response = mask[rows, : curves.waad.shape[-1]]
                running.note(
                    rows, Signals(response, mean_over(curves.waad, local).cpu(), mean_over(curves.fai, global_).cpu())
                )
        if reading is not None:
            running.is_complete = True
            for rows in self._plan(batch, np.flatnonzero(batch.loss_mask.any(1))):
                response = cut(mask, rows, mask[rows, : int(lengths(batch.loss_mask)[rows].max(initial=0))])
                running.note(
                    rows, Signals(response, cut(reading.waad, rows, response), cut(reading.fai, rows, response))
                )
        running.seconds = time.perf_counter() - start_s
        return running

    def _spans(self, batch: Batch, rows: Rows) -> list[Tensor]:
        """Return the span sums of this rank's micro-batches of ``rows``, by a pass of the policy's own."""
        return [spans for part in self._plan(batch, rows) if (spans := self._pass(batch, part)) is not None]

    def _plan(self, batch: Batch, rows: Rows) -> list[Rows]:
        config, long = self._config, lengths(batch.loss_mask)
        return plan_micro_batches(rows, long, config.num_ranks, config.micro_batch_tokens)[self._rank]

    def _pass(self, batch: Batch, rows: Rows) -> Tensor | None:
        """Return the span sums of one micro-batch; None of an empty one, which only ZeRO 3 has to run."""
        module = self._engine.module
        divided = self._config.zero_stage == 3
        if len(rows) == 0 and not divided:
            return None
        token_ids, loss_mask = gather(batch.token_ids, batch.loss_mask, rows, self._engine.device)
        forward: Callable[[], object] | None = None
        if divided:
            # Weights come together only as DeepSpeed's engine runs its whole module: one token a row at its end.
            longer = torch.nn.functional.pad(token_ids, (0, 1))
            last = torch.zeros_like(longer, dtype=torch.bool)
            last[:, -1] = True

            def forward() -> object:
                return self._engine(longer, last)

        with module.precision(token_ids.device):
            curves = attention_curves(module.policy, token_ids, None, loss_mask, self._layers, forward=forward)
        return curves.spans.double().cpu() if len(rows) else None


class BatchCredit:
    """Credit of one batch: unless complete, `run` in place of the engine in one pass over its rows; then `finish`.

    Args:
        engine: see `RhythmCredit`.
        config: see `RhythmCredit`.
        mask: bool [B, T]; R, the response tokens of the rows that have an advantage.
        advantages: float32 [B, T].
        noise: float32 [B, T], for random credit.
        watch: reads the curves of the pass made meanwhile: response mask, bool [b, t] -> context.
    """

    def __init__(
        self,
        engine: Any,
        config: RhythmConfig,
        mask: Tensor,
        advantages: Tensor,
        noise: Tensor | None,
        watch: Callable[[Tensor], AbstractContextManager[MeanCurves]],
    ) -> None:
        self._engine, self._config, self._mask, self._advantages = engine, config, mask, advantages
        self._noise, self._watch = noise, watch
        self._needs = NEEDS[config.credit]
        self._signals = {name: torch.zeros(mask.shape) for name in self._needs}
        self._gain = torch.zeros(mask.shape)
        """gamma - 1, of the rows that this rank has run."""
        self.is_complete = False
        self.seconds = 0.0
        """What credit has taken, beside the passes that are made anyway."""

    def run(
        self, rows: Rows, token_ids: Tensor, loss_mask: Tensor, entropy_grad: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return what the engine says of ``rows``, whose ids and mask are [b, t], and note their credit."""
        response = cut(self._mask, rows, loss_mask)
        if not response.any():
            found: tuple[Tensor, Tensor] = self._engine(token_ids, loss_mask, entropy_grad)
            return found
        if "waad" in self._needs or "fai" in self._needs:
            # The last token is not needed for log-probabilities, but the attention that it pays is: one more column.
            longer = torch.nn.functional.pad(token_ids, (0, 1)), torch.nn.functional.pad(loss_mask, (0, 1))
            with self._watch(response) as curves:
                logprobs, entropies = self._engine(*longer, entropy_grad)
            self.seconds += curves.seconds
            signals = Signals(response, curves.waad, curves.fai)
        else:
            logprobs, entropies = self._engine(token_ids, loss_mask, entropy_grad)
            noise = None if self._noise is None else cut(self._noise, rows, loss_mask)
            signals = Signals(response, entropies=place(entropies.detach(), loss_mask), noise=noise)
        start_s = time.perf_counter()
        self.note(rows, signals)
        self.seconds += time.perf_counter() - start_s
        return logprobs, entropies

    def note(self, rows: Rows, signals: Signals) -> None:
        """Keep the credit of ``rows``, and what it is taken from: [b, t]."""
        response, width = signals.response_mask, signals.response_mask.shape[1]
        gamma = credit(self._config.credit, signals, **{name: getattr(self._config, name) for name in _OPTIONS})
        self._gain[rows, :width] = (gamma - 1).cpu()
        for name, whole in self._signals.items():
            whole[rows, :width] = torch.where(response, getattr(signals, name), 0.0).cpu()

    def amplify(self, advantages: Tensor, rows: Rows, loss_mask: Tensor) -> Tensor:
        """Return ``advantages``, [b, t], of ``rows`` that this rank has run, multiplied by their gamma."""
        return amplify(advantages, 1 + cut(self._gain, rows, loss_mask), self._config.sign)

    def finish(self) -> Credited:
        """Bring together what the ranks have; called once, on all of them."""
        gamma = 1 + sum_over_ranks(self._gain)
        signals = {name: sum_over_ranks(whole) for name, whole in self._signals.items()}
        tokens = max(1, int(self._mask.sum()))
        statistics = {
            "rhythm_share_amplified": int((gamma[self._mask] > 1).sum()) / tokens,
            "rhythm_gamma_mean": float(gamma[self._mask].double().sum()) / tokens,
            "rhythm_seconds": self.seconds,
        }
        for name in ("waad", "fai"):
            if name in signals:
                statistics[f"rhythm_{name}_mean"] = float(signals[name][self._mask].double().sum()) / tokens
        amplified = amplify(self._advantages, gamma, self._config.sign)
        return Credited(amplified.numpy(), gamma.numpy(), Signals(self._mask, **signals), statistics)


def _sum(spans: Sequence[Tensor]) -> Tensor:
    """Return the sum, float64 [L, H], of what the ranks have; one without rows has none, not even a shape."""
    shape = sum_over_ranks(torch.tensor([*spans[0].shape, 1] if spans else [0, 0, 0]))
    none = torch.zeros([int(size) for size in shape[:2] // shape[2]], dtype=torch.float64)
    return sum_over_ranks(sum(spans, none))


_OPTIONS = ("q", "gain", "backshift", "k", "tau_waad", "tau_delta", "h_lo", "h_hi")
"""Fields of `RhythmConfig` that are options of `credit`."""
