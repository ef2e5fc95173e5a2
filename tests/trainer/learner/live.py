"""A real learner that tests call without an event loop of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import torch

from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.deepspeed_learner import DeepSpeedLearner


class LiveLearner:
    """A started learner, each call run to its end on one event loop."""

    def __init__(self, config: LearnerConfig, checkpoint: Path | None = None, log_folder: Path | None = None) -> None:
        self.runner = asyncio.Runner()
        self.learner = DeepSpeedLearner(config, checkpoint=checkpoint, log_folder=log_folder)
        try:
            self.runner.run(self.learner.start())
        except BaseException:
            self.runner.close()
            raise

    def train(self, batch: Batch) -> dict[str, float]:
        return self.runner.run(self.learner.train(batch))

    def logprobs(self, batch: Batch) -> np.ndarray:
        return self.runner.run(self.learner.logprobs(batch))

    def weights(self) -> dict[str, torch.Tensor]:
        """Return a copy of what is published."""
        return {name: weight.clone() for name, weight in self.runner.run(self.learner.publish()).items()}

    def save(self, folder: Path) -> None:
        self.runner.run(self.learner.save(folder))

    def load(self, folder: Path) -> None:
        self.runner.run(self.learner.load(folder))

    def close(self) -> None:
        self.runner.run(self.learner.close())
        self.runner.close()
