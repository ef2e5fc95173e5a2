"""A learner without processes and ranks: the real update, on the least of an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.trainer.learner.plain_engine import PlainEngine

from rollcage.trainer.learner import annotating, critics, row_tensors, update
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.critics import CriticEnsemble
from rollcage.trainer.learner.rhythm import batch_credit
from rollcage.trainer.learner.rhythm.attention_model import AttentionModel
from rollcage.trainer.learner.rhythm.config import RhythmConfig
from rollcage.trainer.learner.token_logprobs import TokenLogprobs
from rollcage.trainer.learner.token_values import TokenValues
from rollcage.trainer.models import load_model


def without_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no process group to sum over."""
    for module in (update, row_tensors, annotating, batch_credit, critics):
        monkeypatch.setattr(module, "sum_over_ranks", lambda tensor: tensor)


class PlainLearner:
    """Updates of a policy in this process, with what they did; for plain gradient descent."""

    def __init__(self, model: Path, rhythm: RhythmConfig | None = None, **options: Any) -> None:
        config = LearnerConfig(
            str(model), lr=0.1, max_grad_norm=0.0, annotated_samples=99, rhythm=rhythm or RhythmConfig(), **options
        )
        self.engine, ensemble = PlainEngine(TokenLogprobs(load_model(model), 1.0), config.lr), None
        if config.needs_critics:
            bodies = [load_model(model).base_model for _ in range(config.critic.num_critics)]
            ensemble = CriticEnsemble([PlainEngine(TokenValues(body), 0.05) for body in bodies], config, 0)
        aside = AttentionModel(self.engine.module, config) if config.rhythm.device else None
        self.update = update.PolicyUpdate(self.engine, config, 0, None, ensemble, aside)
        self.num_passes = 0
        self.engine.module.policy.model.layers[0].register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.num_passes += 1

    def train(self, batch: Batch, policy_version: int = 0) -> dict[str, float]:
        self.update.begin(batch, policy_version)
        return self.update.train()[1]

    def of_tokens(self, name: str) -> np.ndarray:
        """Return what the last update noted of each token, [B, T]."""
        return np.stack([row for sample in self.update.annotations for row in sample.values[name]])
