"""Aggregation of per-token losses against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rollcage.trainer.learner.aggregate import AGGREGATIONS, aggregate, token_weights

LOSSES = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [7.0, 7.0, 7.0]])
MASK = torch.tensor([[1, 1, 1], [0, 1, 0], [0, 0, 0]]).bool()


def test_T7_token_mean_counts_unmasked_tokens_only_with_zero_gradient_on_the_others() -> None:
    losses = torch.tensor([[1.0, 100.0], [1.0, -50.0]], requires_grad=True)
    total = aggregate(losses, token_weights(torch.tensor([[1, 0], [1, 0]]).bool(), "token-mean"))
    total.backward()
    assert total.item() == 1.0
    assert losses.grad is not None
    assert losses.grad.tolist() == [[0.5, 0.0], [0.5, 0.0]]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", (1 + 2 + 3 + 20) / 4),
        ("seq-mean-token-mean", ((1 + 2 + 3) / 3 + 20) / 2),
        ("seq-mean-token-sum", ((1 + 2 + 3) + 20) / 2),
        ("seq-mean-token-sum-norm", ((1 + 2 + 3) + 20) / 2 / 5),
    ],
)
def test_every_mode_by_hand_the_row_without_a_trainable_token_left_out(mode: str, expected: float) -> None:
    assert aggregate(LOSSES, token_weights(MASK, mode, max_length=5)).item() == pytest.approx(expected)


def test_the_default_is_the_mean_over_sequences_of_their_token_means() -> None:
    assert torch.equal(token_weights(MASK), token_weights(MASK, "seq-mean-token-mean"))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
def test_T8_nan_or_inf_under_mask_0_contributes_exactly_zero(mode: str, bad: float) -> None:
    weights = token_weights(MASK, mode, max_length=5)
    dirty = torch.where(MASK, LOSSES, bad).requires_grad_()
    total = aggregate(dirty, weights)
    total.backward()
    assert total == aggregate(LOSSES, weights)
    assert torch.equal(dirty.grad, weights)


@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
def test_T8_an_all_masked_batch_gives_zero_and_zero_gradient(mode: str) -> None:
    losses = torch.tensor([[math.nan, 3.0]], requires_grad=True)
    total = aggregate(losses, token_weights(torch.zeros(1, 2, dtype=torch.bool), mode))
    total.backward()
    assert total.item() == 0.0
    assert losses.grad is not None
    assert losses.grad.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
def test_micro_batches_of_any_size_add_up_to_the_same(mode: str) -> None:
    generator = torch.Generator().manual_seed(0)
    losses, mask = torch.randn(7, 9, generator=generator), torch.rand(7, 9, generator=generator) < 0.4
    weights = token_weights(mask, mode, max_length=9)
    whole = aggregate(losses, weights).item()
    for size in (1, 2, 3):
        parts = zip(losses.split(size), weights.split(size), strict=True)
        assert sum(aggregate(*part).item() for part in parts) == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("mode", sorted(AGGREGATIONS))
def test_an_episode_split_into_two_rows_counts_as_one_sequence(mode: str) -> None:
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
    joined = aggregate(torch.tensor([[1.0, 2.0, 6.0], [5.0, 0.0, 0.0]]), token_weights(mask, mode))
    split_losses = torch.tensor([[1.0, 2.0], [6.0, 0.0], [5.0, 0.0]])
    split_mask = torch.tensor([[1, 1], [1, 0], [1, 0]]).bool()
    split = aggregate(split_losses, token_weights(split_mask, mode, sequence_ids=torch.tensor([4, 4, 9])))
    assert split.item() == pytest.approx(joined.item())
