"""Which rows share a pass: every row once, within the budget, equal work for every rank."""

from __future__ import annotations

import numpy as np
import pytest

from rollcage.trainer.learner.micro_batches import plan_micro_batches, split_episodes


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("budget", [1, 40, 100, 10_000])
def test_every_row_is_planned_once_within_the_budget(num_ranks: int, budget: int) -> None:
    lengths = np.random.default_rng(0).integers(5, 60, 37)
    rows = np.arange(0, 37, 2)
    plan = plan_micro_batches(rows, lengths, num_ranks, budget)
    planned = np.concatenate([micro for rank in plan for micro in rank])
    assert sorted(planned.tolist()) == rows.tolist()
    for micro in (micro for rank in plan for micro in rank if len(micro)):
        assert len(micro) == 1 or lengths[micro].max() * len(micro) <= budget


def test_ranks_get_as_many_micro_batches_and_nearly_equal_work() -> None:
    lengths = np.random.default_rng(1).integers(5, 200, 101)
    plan = plan_micro_batches(np.arange(101), lengths, 4, 500)
    assert len({len(rank) for rank in plan}) == 1
    work = [sum(int(lengths[micro].sum()) for micro in rank) for rank in plan]
    assert max(work) - min(work) <= 200


def test_padding_is_small_since_rows_are_sorted_by_length() -> None:
    lengths = np.random.default_rng(2).integers(20, 200, 256)
    (plan,) = plan_micro_batches(np.arange(256), lengths, 1, 2000)
    padded = sum(int(lengths[micro].max()) * len(micro) for micro in plan)
    assert padded < 1.1 * lengths.sum()


def test_without_rows_every_rank_gets_one_empty_micro_batch() -> None:
    plan = plan_micro_batches(np.zeros(0, np.int64), np.zeros(3, np.int64), 2, 100)
    assert [[len(micro) for micro in rank] for rank in plan] == [[0], [0]]


def test_mini_batches_hold_whole_episodes_and_never_are_empty() -> None:
    episodes = np.array([0, 0, 1, 2, 2, 2, 3])
    parts = split_episodes(episodes, 3, np.random.default_rng(0))
    assert sorted(np.concatenate(parts).tolist()) == list(range(7))
    assert len(parts) == 3
    for part in parts:
        assert np.isin(episodes, episodes[part]).sum() == len(part)
    assert len(split_episodes(episodes, 9, np.random.default_rng(0))) == 4
