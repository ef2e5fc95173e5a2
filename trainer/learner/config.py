"""The learner's configuration: frozen, documented field by field, checked as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from rollcage.errors import UserError, did_you_mean
from rollcage.trainer.learner.critic_config import CriticConfig
from rollcage.trainer.learner.rhythm.config import RhythmConfig
from rollcage.trainer.learner.roles import ATTENTION, CRITICS


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
    """Policy loss: ppo, grpo, gspo, decoupled_ppo, tis, cispo, topr, weighted_topr, kimi15 or reinforce. With an
    async_ratio above 0 take tis, cispo, decoupled_ppo or topr: they correct for samples of older versions. Sources:
    `rollcage train --help`; which to use when: help(rollcage.trainer.learner.losses)."""

    loss_options: dict[str, float | str] = field(default_factory=dict)
    """Options of that loss: e_lo, e_hi, dual_clip (ppo, grpo, decoupled_ppo); e_lo, e_hi (gspo, cispo); w_max
    (decoupled_ppo); cap (tis); level token or trajectory (topr, weighted_topr); w_pos, w_neg (weighted_topr); tau
    (kimi15). Example: e_lo 0.2 e_hi 0.28 dual_clip 3."""

    kl_coef: float = 0.0
    """Weight of a KL penalty to the reference model in the loss; 0 needs no reference model."""

    kl_penalty: Literal["k1", "k2", "k3"] = "k3"
    """How that KL is estimated per token; d = logprobs - ref_logprobs: k1 = d (its gradient is zero on average),
    k2 = d^2 / 2, k3 = exp(-d) - 1 + d."""

    ref_model: str = ""
    """Reference model, as for model; empty: the model that training began with. Loaded where a KL is asked for."""

    advantage: str = "grpo"
    """Advantage estimator: grpo, dr_grpo, rloo, reinforce_pp, remax, gigpo, turn_return or gae; gigpo and turn_return
    give each turn of an episode its own credit, gae, which trains critics (see critic), each token; remax needs
    rollout.greedy_baseline. Sources: `rollcage train --help`."""

    advantage_options: dict[str, float | bool | str] = field(default_factory=dict)
    """Options of that estimator: kl_coef, the weight of the KL to the reference model in the reward (reinforce_pp);
    gamma, the discount per turn, 0.95 by default (gigpo, turn_return); w_episode, w_step (gigpo); gamma, lam, both per
    token and 1 by default, and bootstrap_truncated (gae)."""

    critic: CriticConfig = field(default_factory=CriticConfig)

    whiten_advantages: bool = False
    """Shift and scale the advantages to mean 0 and std 1 over the batch's trainable tokens."""

    rhythm: RhythmConfig = field(default_factory=RhythmConfig)
    """Which tokens' advantages count more, by what the policy's own attention shows (see there): it multiplies whatever
    advantage there is, after all normalisation, whitening and masking."""

    annotated_samples: int = 8
    """Samples of every update of which the run records, token by token, advantage, log-probability and credit."""

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
    """Optimiser steps, after the warm-up, over which the learning rate falls; 0 keeps it constant."""

    decay: Literal["linear", "cosine"] = "linear"
    """How it falls in decay_steps: in a straight line, or as half a cosine wave."""

    min_lr_share: float = 0.0
    """The share of lr that is left after decay_steps."""

    lora_rank: int = 0
    """Train low-rank adapters of this rank on all linear layers but the output, and leave the weights themselves as
    they are (LoRA, arXiv 2106.09685); 0 trains all weights. What is published and saved has the adapters added."""

    lora_alpha: float = 32.0
    """The adapters' weight is lora_alpha / lora_rank."""

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

    offload: Literal["none", "optimizer", "all"] = "none"
    """What waits in the host's memory instead of the GPU's: the optimiser's state (zero_stage 1 to 3), or all, weights
    too (zero_stage 3). Slower; the result is the same."""

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

    @property
    def kl_in_reward(self) -> float:
        """Weight of the KL to the reference model in the reward."""
        weight = self.advantage_options.get("kl_coef", 0.0)
        return 0.0 if isinstance(weight, str) else float(weight)

    @property
    def needs_greedy(self) -> bool:
        """Whether the advantage compares with a greedy rollout of every task."""
        from rollcage.trainer.learner.advantages import NEED_GREEDY

        return self.advantage in NEED_GREEDY

    @property
    def needs_critics(self) -> bool:
        """Whether the advantage compares with the values of critics."""
        from rollcage.trainer.learner.advantages import NEED_VALUES

        return self.advantage in NEED_VALUES

    @property
    def apart(self) -> dict[str, int]:
        """How many processes of which role there are beside the ranks of the policy; see `roles`."""
        num_critic_ranks = self.critic.num_ranks or self.num_ranks
        return {
            **({CRITICS: num_critic_ranks} if self.needs_critics and self.critic.placement == "own" else {}),
            **({ATTENTION: 1} if self.rhythm.placement == "own" else {}),
        }

    def warms_up(self, policy_version: int) -> bool:
        """Return whether only the critics are trained in this update."""
        return self.needs_critics and policy_version < self.critic.warmup_updates

    @property
    def needs_reference(self) -> bool:
        """Whether training compares the policy with the reference model."""
        return self.kl_coef > 0 or self.kl_in_reward > 0

    def _faults(self) -> Iterable[str]:
        # The tables need torch: imported here, so that the configuration can be shown without it.
        from rollcage.trainer.learner.advantages import ADVANTAGES, NEED_VALUES
        from rollcage.trainer.learner.aggregate import AGGREGATIONS
        from rollcage.trainer.learner.losses import LOSSES
        from rollcage.trainer.learner.options import option_faults
        from rollcage.trainer.learner.regularizers import KL_PENALTIES

        yield from _unknown("loss", self.loss, LOSSES)
        yield from _unknown("advantage", self.advantage, ADVANTAGES)
        yield from _unknown("aggregation", self.aggregation, AGGREGATIONS)
        yield from (f"critic.{fault}" for fault in self.critic.faults())
        if self.critic != CriticConfig() and self.advantage not in NEED_VALUES:
            yield f"critic is of no use to advantage {self.advantage!r} (it is to {', '.join(NEED_VALUES)})"
        yield from (f"rhythm.{fault}" for fault in self.rhythm.faults())
        if self.loss in LOSSES:
            yield from option_faults(f"loss {self.loss!r}", LOSSES[self.loss], self.loss_options)
        if self.advantage in ADVANTAGES:
            yield from option_faults(
                f"advantage {self.advantage!r}", ADVANTAGES[self.advantage], self.advantage_options
            )
        yield from _unknown("kl_penalty", self.kl_penalty, KL_PENALTIES)
        if self.ref_model and not self.needs_reference:
            yield "ref_model is of no use without kl_coef (or advantage reinforce_pp with its option kl_coef)"
        for name, above in (("lr", 0.0), ("start_timeout_s", 0.0), ("call_timeout_s", 0.0)):
            if not getattr(self, name) > above:
                yield f"{name} must be above {above:g}, not {getattr(self, name)}"
        for name in (
            "temperature",
            "weight_decay",
            "max_grad_norm",
            "warmup_steps",
            "decay_steps",
            "kl_coef",
            "entropy_coef",
            "lora_rank",
            "annotated_samples",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                yield f"{name} must be at least 0, not {getattr(self, name)}"
        for name in ("epochs", "num_mini_batches", "micro_batch_tokens", "num_ranks", "num_threads", "max_length"):
            if not getattr(self, name) >= 1:
                yield f"{name} must be at least 1, not {getattr(self, name)}"
        if not 0 <= self.min_lr_share <= 1:
            yield f"min_lr_share must lie in [0, 1], not {self.min_lr_share}"
        if self.lora_rank and not self.lora_alpha > 0:
            yield f"lora_alpha must be above 0, not {self.lora_alpha}"
        least = {"none": 0, "optimizer": 1, "all": 3}[self.offload]
        if self.zero_stage < least:
            yield f"offload {self.offload!r} needs zero_stage {least} or more, not {self.zero_stage}"
        if not all(0 <= beta < 1 for beta in self.betas):
            yield f"betas must lie in [0, 1), not {self.betas}"


def _unknown(what: str, name: str, known: Iterable[str]) -> Iterable[str]:
    known = list(known)
    if name not in known:
        yield f"unknown {what} {name!r} (known: {', '.join(known)}){did_you_mean(name, known).rstrip('.')}"
