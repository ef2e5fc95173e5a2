"""The learner seam: whatever turns a batch into new weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rollcage.errors import RollcageError
from rollcage.trainer.engines.base import Weights
from rollcage.trainer.learner.annotations import SampleAnnotations
from rollcage.trainer.learner.batch import Batch


class LearnerDied(RollcageError):
    """A learner process is gone or did not answer by its deadline; resume from the last checkpoint."""


class Learner(Protocol):
    """Trains the policy, off the event loop. Calls are made one at a time."""

    async def start(self) -> None:
        """Load the model (and ``checkpoint`` where resuming) and get ready; idempotent."""
        ...

    async def train(self, batch: Batch) -> dict[str, float]:
        """One update of the policy on ``batch``; returns detached statistics (FORMULAS: every loss reports)."""
        ...

    async def annotations(self) -> Sequence[SampleAnnotations]:
        """Return what the last `train` had for the tokens of a few of its samples; none before."""
        ...

    async def logprobs(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return [B, T] log-probabilities of the batch's tokens under the current weights, 0 where loss_mask is off."""
        ...

    async def publish(self) -> Weights:
        """Return the current weights in shared memory; they are overwritten by the next `publish`."""
        ...

    async def save(self, folder: Path) -> None:
        """Write optimiser state and weights into ``folder`` (model in transformers' format under ``folder/model``)."""
        ...

    async def load(self, folder: Path) -> None:
        """Go back to what `save` wrote."""
        ...

    async def close(self) -> None:
        """End the process; idempotent, with a deadline."""
        ...
