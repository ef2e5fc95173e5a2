"""The learner's configuration: frozen, documented field by field, checked as a whole."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from rollcage.errors import UserError, did_you_mean


@dataclass(frozen=True)
class LearnerConfig:
    """What `DeepSpeedLearner` trains, and how.

    Raises:
        UserError: a value is out of range or a name unknown; all faults in one line.
    """

    model: str = ""
    """Folder in transformers' format, checkpoint of ours, or .gguf file; `rollcage train` puts the run's model here."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number type of the weights while training; bfloat16 keeps a float32 master copy in the optimiser."""

    checkpoint_dtype: Literal["float32", "bfloat16"] = "float32"
    """Number type of the model folder that a checkpoint holds (its optimiser state is always exact)."""

    loss: str = "grpo"
    """Policy loss: a name in rollcage.trainer.learner.losses.LOSSES (ppo, grpo, decoupled_ppo, tis). ppo and
    grpo do not correct for samples of older versions: with async_ratio above 0, tis or decoupled_ppo does."""

    loss_options: dict[str, float] = field(default_factory=dict)
    """Options of that loss, such as e_lo 0.2 e_hi 0.28, dual_clip 3 for ppo, cap 1 for tis."""

    advantage: str = "grpo"
    """Advantage estimator: a name in rollcage.trainer.learner.advantages.ADVANTAGES (grpo, rloo, dr_grpo)."""

    whiten_advantages: bool = False
    """Shift and scale the advantages to mean 0 and std 1 over the batch's trainable tokens."""

    mask_cut: bool = False
    """Give no gradient to episodes with a message that the token limit cut; they still count in their group's baseline.
    (Overlong filtering: DAPO, arXiv 2503.14476, section 3.4.)"""

    aggregation: str = "seq-mean-token-mean"
    """How per-token losses become one: token-mean, seq-mean-token-mean, seq-mean-token-sum, seq-mean-token-sum-norm."""

    max_length: int = 1024
    """The fixed length that seq-mean-token-sum-norm divides by, in tokens."""

    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""

    temperature: float = 1.0
    """The sampling temperature: logits are divided by it before log-probabilities are taken (0 counts as 1)."""

    lr: float = 1e-5
    """Learning rate after the warm-up."""

    warmup_steps: int = 0
    """Optimiser steps over which the learning rate grows linearly from lr / warmup_steps to lr."""

    decay_steps: int = 0
    """Optimiser steps, after the warm-up, over which the learning rate falls linearly to 0; 0 keeps it constant."""

    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's moment decay rates."""

    weight_decay: float = 0.0
    """AdamW's decoupled weight decay, on matrices only (no norms, no biases)."""

    max_grad_norm: float = 1.0
    """The gradient is scaled down to this global norm; 0 is off."""

    epochs: int = 1
    """Passes over each batch."""

    num_mini_batches: int = 1
    """Optimiser steps per pass, each on an equal share of the batch's episodes, drawn anew in every pass."""

    micro_batch_tokens: int = 4096
    """Most tokens, padding included, in one forward and backward pass. Memory and speed only: never the result."""

    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, about a third more time."""

    num_ranks: int = 1
    """Processes that share the work; on GPUs, one each."""

    zero_stage: Literal[0, 1, 2, 3] = 0
    """DeepSpeed ZeRO: what ranks divide among them (1: optimiser state, 2: and gradients, 3: and weights)."""

    num_threads: int = 1
    """CPU threads of each rank."""

    compute_dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    """Number type of the matrix products (mixed precision); auto: bfloat16 where the device is made for it. That is
    about 1.6 times as fast for a small policy on a processor with AMX, several times for a large one, and widens the
    gap to a sampler in float32 (statistic logprob_gap)."""

    seed: int = 0
    """Seed of the mini-batch draws (and of dropout, where the model has it)."""

    start_timeout_s: float = 600.0
    """Deadline for the ranks to load the model and get ready, in seconds."""

    call_timeout_s: float = 1800.0
    """Deadline for every later call, in seconds; a rank that misses it counts as dead."""

    def __post_init__(self) -> None:
        faults = list(self._faults())
        if faults:
            raise UserError("learner: " + "; ".join(faults) + ".")

    def _faults(self) -> Iterable[str]:
        # The tables need torch: imported here, so that the configuration can be shown without it.
        from rollcage.trainer.learner.advantages import ADVANTAGES, NEED_VALUES
        from rollcage.trainer.learner.aggregate import AGGREGATIONS
        from rollcage.trainer.learner.losses import LOSSES

        yield from _unknown("loss", self.loss, LOSSES)
        yield from _unknown("advantage", self.advantage, ADVANTAGES)
        yield from _unknown("aggregation", self.aggregation, AGGREGATIONS)
        if self.advantage in NEED_VALUES:
            usable = ", ".join(name for name in ADVANTAGES if name not in NEED_VALUES)
            yield f"advantage {self.advantage!r} needs a critic, which this learner does not train (use {usable})"
        if self.loss in LOSSES:
            parameters = inspect.signature(LOSSES[self.loss]).parameters.values()
            options = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
            for name, value in self.loss_options.items():
                yield from _unknown(f"option of loss {self.loss!r}:", name, options)
                if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
                    yield f"loss option {name} must be a number of at least 0, not {value!r}"
            if "dual_clip" in self.loss_options and self.loss_options["dual_clip"] <= 1:
                yield f"loss option dual_clip must be above 1, not {self.loss_options['dual_clip']}"
        for name, above in (("lr", 0.0), ("start_timeout_s", 0.0), ("call_timeout_s", 0.0)):
            if not getattr(self, name) > above:
                yield f"{name} must be above {above:g}, not {getattr(self, name)}"
        for name in ("temperature", "weight_decay", "max_grad_norm", "warmup_steps", "decay_steps"):
            if not getattr(self, name) >= 0:
                yield f"{name} must be at least 0, not {getattr(self, name)}"
        for name in ("epochs", "num_mini_batches", "micro_batch_tokens", "num_ranks", "num_threads", "max_length"):
            if not getattr(self, name) >= 1:
                yield f"{name} must be at least 1, not {getattr(self, name)}"
        if not all(0 <= beta < 1 for beta in self.betas):
            yield f"betas must lie in [0, 1), not {self.betas}"


def _unknown(what: str, name: str, known: Iterable[str]) -> Iterable[str]:
    known = list(known)
    if name not in known:
        yield f"unknown {what} {name!r} (known: {', '.join(known)}){did_you_mean(name, known).rstrip('.')}"
