"""The simulated learner: an update takes a fixed time and a time for every sample."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rollcage.trainer.engines.base import Weights
from rollcage.trainer.learner.annotations import SampleAnnotations
from rollcage.trainer.learner.batch import Batch


class SimulatedLearner:
    """Implements `Learner` without a model.

    Args:
        update_s: seconds of an update, however small.
        sample_s: seconds more for every episode of the batch, all epochs together.
        publish_s: seconds until the new weights are there to be taken.
        on_training: called with True when training begins and False when it ends.
    """

    def __init__(
        self,
        *,
        sample_s: float,
        update_s: float = 0.0,
        publish_s: float = 0.0,
        on_training: Callable[[bool], None] = lambda is_training: None,
    ) -> None:
        self._sample_s, self._update_s, self._publish_s = sample_s, update_s, publish_s
        self._on_training = on_training

    async def start(self) -> None:
        """See `Learner`."""

    async def train(self, batch: Batch) -> dict[str, float]:
        """See `Learner`."""
        self._on_training(True)
        await asyncio.sleep(self._update_s + self._sample_s * len(set(batch.episode_ids.tolist())))
        self._on_training(False)
        return {}

    async def annotations(self) -> list[SampleAnnotations]:
        """See `Learner`: none."""
        return []

    async def logprobs(self, batch: Batch) -> npt.NDArray[np.float32]:
        """See `Learner`: the sampler's own, at no cost (`train` includes all forward passes)."""
        return batch.rollout_logprobs

    async def publish(self) -> Weights:
        """See `Learner`: no weights, after ``publish_s``."""
        await asyncio.sleep(self._publish_s)
        return {}

    async def save(self, folder: Path) -> None:
        """See `Learner`: nothing to write."""

    async def load(self, folder: Path) -> None:
        """See `Learner`: nothing to read."""

    async def close(self) -> None:
        """See `Learner`."""
