"""What the worker process of one learner rank serves: the policy, its training, publishing and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from rollcage.trainer.learner.annotations import SampleAnnotations
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.critic_engines import load_critics, make_critics, save_critics
from rollcage.trainer.learner.critics import CriticEnsemble, Judgement
from rollcage.trainer.learner.deepspeed_engine import make_engine, named_weights, whole
from rollcage.trainer.learner.dropout import without_dropout
from rollcage.trainer.learner.group_member import GroupMember, attention_kernel, compute_dtype, readable
from rollcage.trainer.learner.lora import ADAPTER, add_adapters, find_adapters, matrices
from rollcage.trainer.learner.rhythm.attention_model import AttentionModel
from rollcage.trainer.learner.rhythm.attention_rank import Reading
from rollcage.trainer.learner.rhythm.heads import Heads
from rollcage.trainer.learner.shared_weights import Layout, make_layout, map_weights
from rollcage.trainer.learner.statistics import Totals
from rollcage.trainer.learner.token_logprobs import TokenLogprobs
from rollcage.trainer.learner.update import PolicyUpdate
from rollcage.trainer.models import find_model, load_model, load_tokenizer

STATE = "deepspeed"
TOKENIZER_FILES = ("tokenizer*", "special_tokens*", "added_tokens*", "vocab*", "merges.txt", "chat_template*")


class RankState(NamedTuple):
    """What the processes that are apart from the policy's ranks must know.

    Attributes:
        policy_version: how often the policy has been trained.
        num_tokens: of its vocabulary.
        heads: by which rhythm reads; None before they are picked.
    """

    policy_version: int
    num_tokens: int
    heads: Heads | None


class DeepSpeedRank(GroupMember):
    """One rank. Every method but `open_store` and `state` must be called on all ranks, with the same arguments.

    Args:
        memory: descriptor of the shared memory that rank 0 publishes through.
    """

    def __init__(self, memory: int) -> None:
        super().__init__()
        self._memory = memory
        self._policy_version = 0

    @property
    def published(self) -> Mapping[str, torch.Tensor]:
        """On rank 0 the weights as `publish` has left them; nothing on the others."""
        return self._published

    def start(self, config: LearnerConfig, checkpoint: Path | None, port: int) -> Layout:
        """Load the model, or the checkpoint, and get ready; returns where the published weights lie.

        Raises:
            UserError: the model or the checkpoint cannot be used.
        """
        self._config = config
        torch.set_num_threads(config.num_threads)
        torch.manual_seed(config.seed)
        self._source = find_model(checkpoint or config.model)
        self._tokenizer_files = _read_tokenizer(self._source)  # now: a checkpoint may be gone by the next `save`
        policy = load_model(self._source, config.dtype)
        without_dropout(policy)
        if config.gradient_checkpointing:
            policy.gradient_checkpointing_enable({"use_reentrant": False})
        if config.lora_rank:
            add_adapters(policy, config)
        self._policy, self._adapters = policy, find_adapters(policy)
        layout = make_layout((name, tuple(weight.shape), weight.dtype) for name, weight in named_weights(policy))
        self._published = map_weights(self._memory, layout) if self._rank == 0 else {}
        device = self._join(port, config.call_timeout_s)
        dtype, attention = compute_dtype(config, device), attention_kernel(config, device)
        policy.set_attn_implementation(attention)
        module = TokenLogprobs(policy, config.temperature, dtype)
        is_inside = config.rhythm.placement == "learner"
        attention_model = AttentionModel(module, config) if config.rhythm.device and is_inside else None
        self._engine = make_engine(module, config)
        reference = _load_reference(config, dtype, self._engine.device) if config.needs_reference else None
        self._critics = []
        if config.needs_critics and config.critic.placement == "learner":
            num_tokens = policy.config.get_text_config().vocab_size
            self._critics = make_critics(
                config, checkpoint=checkpoint, num_tokens=num_tokens, attention=attention, compute_dtype=dtype
            )
        ensemble = CriticEnsemble(self._critics, config, self._rank) if self._critics else None
        self._update = PolicyUpdate(self._engine, config, self._rank, reference, ensemble, attention_model)
        if checkpoint is not None:
            self.load(checkpoint)
        return layout

    def state(self) -> RankState:
        """Return what is the same on all ranks."""
        heads = None if self._update.rhythm is None else self._update.rhythm.heads
        return RankState(self._policy_version, self._policy.config.get_text_config().vocab_size, heads)

    def begin(self, batch: Batch) -> None:
        """Do what needs no advantages of the update that `train` makes then; see `PolicyUpdate.begin`."""
        self._update.begin(batch, self._policy_version)

    def train(
        self, judgement: Judgement | None = None, reading: Reading | None = None, batch: Batch | None = None
    ) -> tuple[Totals, dict[str, float]]:
        """Update the policy once, on ``batch`` or the one that `begin` got; see `PolicyUpdate.train`."""
        if batch is not None:
            self.begin(batch)
        result = self._update.train(judgement, reading)
        self._policy_version += 1
        return result

    def annotations(self) -> list[SampleAnnotations]:
        """Return what the last update had for the tokens of some samples; the same on all ranks."""
        return self._update.annotations

    def logprobs(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return [B, T] log-probabilities; see `PolicyUpdate.logprobs`."""
        return self._update.logprobs(batch)

    def publish(self) -> None:
        """Copy the weights into the shared memory."""
        for name, weight in named_weights(self._policy):
            adapter = self._adapters.get(name)
            with torch.no_grad(), whole([weight, *(matrices(adapter) if adapter else ())], self._config):
                if self._rank == 0:
                    self._published[name].copy_(weight + adapter.get_delta_weight(ADAPTER) if adapter else weight)

    def save(self, folder: Path) -> None:
        """Write DeepSpeed's state and the random generator's, and ``model/`` in transformers' format with tokenizer."""
        state = {
            "policy_version": self._policy_version,
            "rng": torch.get_rng_state(),
            "rhythm_heads": self.state().heads,
        }
        self._engine.save_checkpoint(str(folder), tag=STATE, client_state=state, save_latest=False)
        save_critics(self._critics, folder, self._rank)
        self.publish()
        if self._rank == 0:
            self._save_model(folder / "model")

    def load(self, folder: Path) -> None:
        """Go back to what `save` wrote.

        Raises:
            UserError: it cannot be read.
        """
        with readable(folder):
            _, state = self._engine.load_checkpoint(str(folder), tag=STATE)
            load_critics(self._critics, folder)
            self._policy_version = int(state["policy_version"])
            torch.set_rng_state(state["rng"])
            if self._update.rhythm is not None:
                self._update.rhythm.heads = state.get("rhythm_heads")

    def _save_model(self, folder: Path) -> None:
        """Write what is published last, in transformers' format."""
        dtype = self._config.checkpoint_dtype
        weights = {name: weight.to(getattr(torch, dtype)) for name, weight in self._published.items()}
        self._policy.save_pretrained(folder, state_dict=weights)
        self._policy.config.dtype = dtype
        self._policy.config.save_pretrained(folder)
        if self._source.suffix == ".gguf":
            load_tokenizer(self._source).save_pretrained(folder)
        for name, content in self._tokenizer_files.items():
            (folder / name).write_bytes(content)


def _load_reference(config: LearnerConfig, dtype: torch.dtype, device: torch.device) -> TokenLogprobs:
    """Return the frozen reference model, whole on every rank: the run's first model, also when going on with it."""
    attention = attention_kernel(config, device.type)
    policy = load_model(find_model(config.ref_model or config.model), config.dtype, attn_implementation=attention)
    without_dropout(policy)
    return TokenLogprobs(policy, config.temperature, dtype).to(device).requires_grad_(False)


def _read_tokenizer(source: Path) -> dict[str, bytes]:
    """Return the files of a model folder's tokenizer by name; none of a GGUF file's."""
    files = [file for pattern in TOKENIZER_FILES for file in source.glob(pattern)]
    return {file.name: file.read_bytes() for file in files}
