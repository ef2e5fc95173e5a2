"""What a process of the critics' own serves, where they are not in those of the policy's ranks."""

from __future__ import annotations

from pathlib import Path

import torch

from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.critic_engines import load_critics, make_critics, save_critics
from rollcage.trainer.learner.critics import CriticEnsemble, Judgement
from rollcage.trainer.learner.group_member import GroupMember, attention_kernel, compute_dtype, readable


class CriticRank(GroupMember):
    """One rank of the critics. Every method but `open_store` must be called on all of them, with the same arguments."""

    def start(self, config: LearnerConfig, checkpoint: Path | None, port: int, num_tokens: int) -> None:
        """Load the critics, or the checkpoint, and get ready.

        Args:
            config: of the learner, with the critics' number of ranks in the place of the policy's.
            checkpoint: folder that `save` wrote to, to go on from.
            port: at which the ranks meet.
            num_tokens: of the policy's vocabulary.

        Raises:
            UserError: the model or the checkpoint cannot be used.
        """
        torch.set_num_threads(config.num_threads)
        torch.manual_seed(config.seed)
        device = self._join(port, config.call_timeout_s)
        self._engines = make_critics(
            config,
            checkpoint=checkpoint,
            num_tokens=num_tokens,
            attention=attention_kernel(config, device),
            compute_dtype=compute_dtype(config, device),
        )
        self._ensemble = CriticEnsemble(self._engines, config, self._rank)
        if checkpoint is not None:
            self.load(checkpoint)

    def judge(self, batch: Batch, policy_version: int) -> Judgement | None:
        """Train the critics on ``batch``, then judge it: see `CriticEnsemble.judge`. Rank 0 returns the judgement."""
        judgement = self._ensemble.judge(batch, policy_version)
        return judgement if self._rank == 0 else None

    def save(self, folder: Path) -> None:
        """Write the critics' part of a checkpoint, which is the same wherever they are."""
        save_critics(self._engines, folder, self._rank)

    def load(self, folder: Path) -> None:
        """Go back to what `save` wrote.

        Raises:
            UserError: it cannot be read.
        """
        with readable(folder):
            load_critics(self._engines, folder)
