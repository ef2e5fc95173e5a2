"""What the trainer had for each token of a few samples of an update: for people who look at a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rollcage.trainer.types import Group

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SampleAnnotations:
    """One sample's.

    Attributes:
        episode: the sample's place in the batch; see `Batch.episode_ids`.
        values: quantity -> one float32 array for each of the sample's segments, each as long as the batch is wide, NaN
            where the token was not trained on. ``advantages`` (as trained on: after credit), ``old_logprobs`` (of the
            trainer before the update; in what went through the model), and with attention rhythm ``credit`` (gamma),
            ``waad`` and ``fai``, where they were computed.
    """

    episode: int
    values: dict[str, list[Floats]] = field(default_factory=dict)


def annotation_rows(
    annotations: Sequence[SampleAnnotations], groups: Sequence[Group], policy_version: int
) -> Iterator[dict[str, Any]]:
    """Yield what is recorded of an update on ``groups``: JSON-able, numbers to 4 digits, None where there is no value.

    Keys: ``id`` ("group.member", as in the trajectory's record), ``policy_version`` (that the update began with), and
    for each quantity one list [T] a segment.
    """
    trajectories = sorted((t for group in groups for t in group.trajectories), key=lambda t: t.sample_id)
    for sample in annotations:
        trajectory = trajectories[sample.episode]
        group, member = trajectory.sample_id
        lengths = [len(segment.token_ids) for segment in trajectory.segments]
        values = {
            name: [_plain(array[:length]) for array, length in zip(arrays, lengths, strict=True)]
            for name, arrays in sample.values.items()
        }
        yield {"id": f"{group}.{member}", "policy_version": policy_version, **values}


def _plain(array: Floats) -> list[float | None]:
    return [None if np.isnan(value) else float(f"{value:.4g}") for value in array]
