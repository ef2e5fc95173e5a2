"""The shipped fake learner: takes time, counts versions, keeps what it was given. For tests and for virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rollcage.trainer.engines.base import Weights
from rollcage.trainer.learner.annotations import SampleAnnotations
from rollcage.trainer.learner.batch import Batch


class ScriptedLearner:
    """Implements `Learner` without a model.

    Args:
        train_s: seconds of one update.
        on_train: called with each batch; may raise, to script a fault.
    """

    def __init__(self, *, train_s: float = 1.0, on_train: Callable[[Batch], None] = lambda batch: None) -> None:
        self._train_s, self._on_train = train_s, on_train
        self.num_updates = 0

    async def start(self) -> None:
        """See `Learner`."""

    async def train(self, batch: Batch) -> dict[str, float]:
        """See `Learner`."""
        await asyncio.sleep(self._train_s)
        self._on_train(batch)
        self.num_updates += 1
        return {"loss": 0.0}

    async def annotations(self) -> list[SampleAnnotations]:
        """See `Learner`: none."""
        return []

    async def logprobs(self, batch: Batch) -> npt.NDArray[np.float32]:
        """See `Learner`: the sampler's own."""
        return batch.rollout_logprobs

    async def publish(self) -> Weights:
        """See `Learner`: no weights."""
        return {}

    async def save(self, folder: Path) -> None:
        """See `Learner`."""
        (folder / "scripted.json").write_text(json.dumps({"num_updates": self.num_updates}), encoding="utf-8")

    async def load(self, folder: Path) -> None:
        """See `Learner`."""
        self.num_updates = json.loads((folder / "scripted.json").read_text(encoding="utf-8"))["num_updates"]

    async def close(self) -> None:
        """See `Learner`."""
