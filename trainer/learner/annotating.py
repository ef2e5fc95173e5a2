"""Collects annotations on one rank, while an update runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rollcage.trainer.learner.annotations import Floats, SampleAnnotations
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.deepspeed_engine import sum_over_ranks
from rollcage.trainer.learner.micro_batches import Rows

_CHOICE = 0xA707
"""Parts the draw of samples from the others with the same seed and version."""


class Annotating:
    """Notes what passes by in an update, without a pass of its own. Every call is made on all ranks.

    Args:
        batch: the update's.
        pulling: bool [B]; the rows that go through the model.
        num_samples: samples to annotate; drawn by chance, those that go through the model first.
        draw: what the draw depends on, besides the batch.
    """

    def __init__(self, batch: Batch, pulling: npt.NDArray[np.bool_], num_samples: int, draw: tuple[int, int]) -> None:
        self._batch = batch
        episodes = np.unique(batch.episode_ids)
        pulls = np.isin(episodes, batch.episode_ids[pulling])
        noise = np.random.default_rng((*draw, 0, _CHOICE)).random(len(episodes))
        self._episodes = np.sort(episodes[np.lexsort((noise, ~pulls))[:num_samples]])
        self._rows = np.flatnonzero(np.isin(batch.episode_ids, self._episodes))
        self._logprobs = torch.zeros(len(self._rows), batch.loss_mask.shape[1])
        self._seen = torch.zeros(len(self._rows))

    def see(self, rows: Rows, old_logprobs: Tensor) -> None:
        """Keep the log-probabilities, [b, t], of a micro-batch of this rank."""
        for place in np.flatnonzero(np.isin(rows, self._rows)):
            own = int(np.searchsorted(self._rows, rows[place]))
            self._logprobs[own, : old_logprobs.shape[1]] = old_logprobs[place].detach().float().cpu()
            self._seen[own] = 1

    def finish(self, quantities: Mapping[str, Floats]) -> list[SampleAnnotations]:
        """Return the annotations; ``quantities`` are arrays of the whole batch, [B, T]."""
        if len(self._rows) == 0:
            return []
        mask, seen = self._batch.loss_mask[self._rows], sum_over_ranks(self._seen).bool()[:, None].numpy()
        arrays = {name: np.where(mask, whole[self._rows], np.nan) for name, whole in quantities.items()}
        arrays["old_logprobs"] = np.where(mask & seen, sum_over_ranks(self._logprobs).numpy(), np.nan)
        ids = self._batch.episode_ids[self._rows]
        return [
            SampleAnnotations(
                int(episode),
                {name: list(array[ids == episode].astype(np.float32)) for name, array in arrays.items()},
            )
            for episode in self._episodes
        ]
