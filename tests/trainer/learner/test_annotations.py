"""Per-token annotations: which samples they are of, what they hold, and where a run writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rollcage.monitor.run_folder import RunFolder, read_rows
from rollcage.trainer.learner import annotating
from rollcage.trainer.learner.annotating import Annotating
from rollcage.trainer.learner.annotations import SampleAnnotations, annotation_rows
from rollcage.trainer.learner.batch import Batch, make_batch
from rollcage.trainer.types import Group, Segment, Trajectory


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no process group to sum over."""
    monkeypatch.setattr(annotating, "sum_over_ranks", lambda tensor: tensor)


def annotate(batch: Batch, pulling: np.ndarray, num_samples: int, version: int = 0) -> list[SampleAnnotations]:
    """Let the rows that pull pass by in two micro-batches, with log-probability -row."""
    notes = Annotating(batch, pulling, num_samples, (0, version))
    for rows in np.array_split(np.flatnonzero(pulling)[::-1], 2):
        notes.see(rows, -torch.from_numpy(rows.copy()).float()[:, None].expand(-1, batch.loss_mask.shape[1]))
    return notes.finish({"advantages": np.ones(batch.loss_mask.shape, np.float32)})


def test_a_few_samples_are_drawn_those_that_train_first(random_batch: Callable[..., Batch]) -> None:
    batch = random_batch()
    pulling = batch.group_ids > 0
    few = annotate(batch, pulling, 3)
    assert len(few) == 3
    assert all(pulling[sample.episode] for sample in few)
    assert [sample.episode for sample in annotate(batch, pulling, 3)] == [sample.episode for sample in few]
    assert [sample.episode for sample in annotate(batch, pulling, 3, version=1)] != [sample.episode for sample in few]
    assert [sample.episode for sample in annotate(batch, pulling, 99)] == list(range(12))
    assert annotate(batch, pulling, 0) == []


def test_values_stand_on_trained_tokens_and_only_where_the_model_ran(random_batch: Callable[..., Batch]) -> None:
    batch = random_batch()
    batch.episode_ids = np.array([0, 0, *range(1, 11)])  # the first episode fills two rows
    pulling = batch.group_ids > 0
    for sample in annotate(batch, pulling, 99):
        rows = np.flatnonzero(batch.episode_ids == sample.episode)
        assert len(sample.values["advantages"]) == len(rows)
        for row, advantages, logprobs in zip(
            rows, *(sample.values[n] for n in ("advantages", "old_logprobs")), strict=True
        ):
            np.testing.assert_array_equal(advantages, np.where(batch.loss_mask[row], 1, np.nan))
            known = batch.loss_mask[row] & pulling[row]
            np.testing.assert_array_equal(logprobs, np.where(known, -float(row), np.nan))


def test_a_run_writes_them_under_the_names_of_its_samples(tmp_path: Path) -> None:
    def sample(member: int, *lengths: int) -> Trajectory:
        segments = [Segment([5] * n, [0] + [1] * (n - 1), [-1.0] * n, [0] * n) for n in lengths]
        return Trajectory((7, member), "task", 0, segments=segments)

    groups = [Group(7, "task", [sample(1, 3), sample(0, 4, 2)], 0)]
    batch = make_batch(groups)
    recorder = RunFolder(tmp_path)
    for row in annotation_rows(annotate(batch, np.array([True, True, False]), 2), groups, policy_version=4):
        recorder.annotations(row)
    recorder.close()
    (tmp_path / "config.json").write_text("{}")
    first, second = ({k: v for k, v in row.items() if k != "time"} for row in read_rows(tmp_path, "annotations"))
    assert first == {
        "id": "7.0",
        "policy_version": 4,
        "advantages": [[None, 1.0, 1.0, 1.0], [None, 1.0]],
        "old_logprobs": [[None, 0.0, 0.0, 0.0], [None, -1.0]],
    }
    assert second["id"] == "7.1"
    assert second["old_logprobs"] == [[None, None, None]]  # it did not go through the model
