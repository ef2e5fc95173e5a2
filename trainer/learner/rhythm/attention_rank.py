"""The attention model in a process of its own: token rows go in, the curves that credit is taken from come out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.deepspeed_engine import named_weights
from rollcage.trainer.learner.dropout import without_dropout
from rollcage.trainer.learner.group_member import attention_kernel, compute_dtype
from rollcage.trainer.learner.micro_batches import plan_micro_batches
from rollcage.trainer.learner.rhythm.attention_model import curves_of_rows, placed
from rollcage.trainer.learner.rhythm.heads import Heads, mean_over, pick_heads, sample_layers
from rollcage.trainer.learner.row_tensors import lengths
from rollcage.trainer.learner.shared_weights import Layout, map_weights
from rollcage.trainer.learner.token_logprobs import TokenLogprobs
from rollcage.trainer.models import find_model, load_model


@dataclass(frozen=True, slots=True)
class Reading:
    """What the attention model found in a batch.

    Attributes:
        heads: by which it was read.
        waad: float32 [B, T], of the local heads' mean map, on trainable tokens; 0 elsewhere.
        fai: float32 [B, T], of the global heads' mean map; likewise.
    """

    heads: Heads
    waad: Tensor
    fai: Tensor


class AttentionRank:
    """A copy of the policy, of the version that was published last. It remembers nothing else.

    Args:
        memory: descriptor of the shared memory that the policy's rank 0 publishes through.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory

    def start(self, config: LearnerConfig, checkpoint: Path | None, layout: Layout) -> None:
        """Load the policy, and get ready; `take` comes next.

        Raises:
            UserError: the model, or `RhythmConfig.device`, cannot be used.
        """
        torch.set_num_threads(config.num_threads)
        device = config.rhythm.device or ("cuda" if torch.cuda.is_available() else "cpu")
        kind = torch.device(device).type
        policy = load_model(
            find_model(checkpoint or config.model), config.dtype, attn_implementation=attention_kernel(config, kind)
        )
        without_dropout(policy)
        self._config = config
        self._module = TokenLogprobs(policy, config.temperature, compute_dtype(config, kind))
        self._policy = placed(policy, device)
        self._published: Mapping[str, Tensor] = map_weights(self._memory, layout)
        self._layers = sample_layers(policy.config.get_text_config().num_hidden_layers)

    def take(self, weights: Mapping[str, Tensor] | None = None) -> None:
        """Take the policy's ``weights``; by default those in the shared memory."""
        published = self._published if weights is None else weights
        with torch.no_grad():
            for name, own in named_weights(self._policy):
                own.copy_(published[name])

    def read(self, batch: Batch, policy_version: int, heads: Heads | None) -> Reading | None:
        """Read ``batch`` by ``heads``, or by ones picked from it where those are due; None where nothing is to read."""
        config, long = self._config, lengths(batch.loss_mask)
        rows = np.flatnonzero(batch.loss_mask.any(1))
        if len(rows) == 0:
            return None
        [plan] = plan_micro_batches(rows, long, 1, config.micro_batch_tokens)
        found = curves_of_rows(self._policy, self._module, config.rhythm, batch, plan, self._layers)
        if heads is None or config.rhythm.picks_heads(policy_version):
            kept = list(found)
            spans = torch.stack([curves.spans.double().cpu() for _, curves in kept])
            heads = pick_heads(spans.sum(0), config.rhythm.head_share)
            found = iter(kept)
        waad, fai = torch.zeros(batch.loss_mask.shape), torch.zeros(batch.loss_mask.shape)
        for part, curves in found:
            width = curves.waad.shape[-1]
            waad[part, :width] = mean_over(curves.waad, heads[0]).cpu()
            fai[part, :width] = mean_over(curves.fai, heads[1]).cpu()
        return Reading(heads, waad, fai)
