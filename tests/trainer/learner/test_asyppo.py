"""AsyPPO's formulas against plain loops and numbers worked out by hand."""

from __future__ import annotations

import doctest
import math
from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from rollcage.trainer.learner import asyppo
from rollcage.trainer.learner.asyppo import (
    correlation,
    disagreement,
    disagreement_histogram,
    explained_variance,
    keep_certain,
    keep_uncertain,
    mean_value,
    response_shares,
    value_loss,
)


def test_the_examples_of_the_documentation_are_right() -> None:
    assert doctest.testmod(asyppo).failed == 0


@pytest.mark.parametrize("num_critics", [1, 2, 3, 4])
@pytest.mark.parametrize("group_size", [1, 2, 3, 4, 5, 8])
def test_every_group_is_divided_disjointly_and_equally_and_remainders_rotate(num_critics: int, group_size: int) -> None:
    groups = torch.arange(12).repeat_interleave(group_size)
    shares = response_shares(groups, num_critics)
    for group in range(12):
        counts = Counter(dict.fromkeys(range(num_critics), 0)) + Counter(shares[groups == group].tolist())
        assert sum(counts.values()) == group_size, "each response has exactly one critic"
        sizes = [counts[m] for m in range(num_critics)]
        assert max(sizes) - min(sizes) <= 1
    totals = torch.bincount(shares, minlength=num_critics)
    assert totals.max() == totals.min(), "twelve groups: remainders of 1, 2 and 3 come out even"


def test_shares_by_hand() -> None:
    assert response_shares(torch.tensor([5, 5, 5, 8, 8, 8]), 2).tolist() == [0, 1, 0, 1, 0, 1]
    assert response_shares(torch.tensor([5, 8, 5, 8, 5, 8]), 2).tolist() == [0, 1, 1, 0, 0, 1], "groups may be mixed"
    assert response_shares(torch.tensor([1, 2, 3, 4, 5]), 3).tolist() == [0, 1, 2, 0, 1], "groups smaller than M"


def test_value_and_disagreement_by_hand() -> None:
    values = torch.tensor([[[0.0, 1.0, 9.0]], [[1.0, 1.0, math.nan]]])
    mask = torch.tensor([[True, True, False]])
    assert mean_value(values)[mask].tolist() == [0.5, 1.0]
    assert disagreement(values, mask).tolist() == [[0.5, 0.0, 0.0]], "half of the distance, and 0 under the mask"
    three = torch.tensor([0.0, 3.0, 6.0])[:, None, None]
    assert disagreement(three, torch.ones(1, 1, dtype=torch.bool)).item() == pytest.approx(math.sqrt(6)), "population"


def loop_masks(sigma: np.ndarray, mask: np.ndarray, hundredths: int, *, highest: bool) -> np.ndarray:
    """Return which tokens stay on, written down directly; the share is a whole number of hundredths."""
    tokens = [(b, t) for b in range(len(mask)) for t in range(mask.shape[1]) if mask[b, t]]
    number = hundredths * len(tokens) // 100
    kept = np.ones(mask.shape, np.bool_)
    for _ in range(number):  # take the most extreme one, the first of equals
        best = tokens[0]
        for token in tokens[1:]:
            if sigma[token] > sigma[best] if highest else sigma[token] < sigma[best]:
                best = token
        tokens.remove(best)
        kept[best] = False
    return kept


@pytest.mark.parametrize("hundredths", [0, 7, 20, 29, 57, 100])
def test_masks_are_those_of_a_plain_loop_ties_included(hundredths: int) -> None:
    rng = np.random.default_rng(hundredths)
    sigma = rng.integers(0, 6, (10, 14)) / 10  # many ties
    mask = rng.random(sigma.shape) < 0.71
    mask[3] = False
    mask.ravel()[np.flatnonzero(mask.ravel())[100:]] = False  # exactly 100: 0.29 * 100 is 28.99... in binary
    scores, on = torch.from_numpy(sigma), torch.from_numpy(mask)
    for keep, highest in ((keep_uncertain, False), (keep_certain, True)):
        kept = keep(scores, on, hundredths / 100)
        assert np.array_equal(kept.numpy(), loop_masks(sigma, mask, hundredths, highest=highest))
        assert int((~kept).sum()) == hundredths * int(mask.sum()) // 100
        assert bool(kept[~on].all())


def test_masks_by_hand_in_the_batch_and_within_each_response() -> None:
    sigma = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.5, 0.7, 9.9], [0.6, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[True] * 4, [True, True, True, False], [True, False, False, False]])
    ids = torch.tensor([0, 1, 1])  # the last two rows are one response

    def off(kept: Tensor) -> list[list[int]]:
        return torch.nonzero(~kept).tolist()

    assert off(keep_uncertain(sigma, mask, 0.25)) == [[0, 0], [0, 1]], "floor(0.25 * 8) = 2"
    assert off(keep_certain(sigma, mask, 0.25)) == [[1, 2], [2, 0]]
    assert off(keep_uncertain(sigma, mask, 0.25, ids)) == [[0, 0], [1, 0]], "one of four in each; the first of equals"
    assert off(keep_certain(sigma, mask, 0.5, ids)) == [[0, 2], [0, 3], [1, 2], [2, 0]]
    nothing = torch.zeros_like(mask)
    assert bool(keep_uncertain(sigma, nothing, 0.5).all())
    assert bool(keep_certain(sigma, nothing, 0.5, ids).all())


def test_value_loss_by_hand_with_and_without_its_clip() -> None:
    values = torch.tensor([0.0, 1.0, 0.5, 0.5], requires_grad=True)
    targets, old = torch.tensor([2.0, 1.0, 1.0, 0.0]), torch.tensor([0.0, 1.0, 0.0, 1.0])
    loss = value_loss(values, targets)
    assert loss.tolist() == [2.0, 0.0, 0.125, 0.125]
    loss.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [-2.0, 0.0, -0.5, 0.5], "the gradient is V - R"
    # held within 0.25 of the old: 0, 1, 0.25, 0.75; the greater loss counts
    clipped = value_loss(values, targets, old, clip=0.25)
    assert clipped.tolist() == [2.0, 0.0, pytest.approx(0.5 * 0.75**2), pytest.approx(0.5 * 0.75**2)]
    values.grad = None
    clipped.sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [-2.0, 0.0, 0.0, 0.0], "what has moved far enough is not pulled further"
    with pytest.raises(ValueError, match="clip needs old_values"):
        value_loss(values, targets, clip=0.1)


def test_explained_variance_and_correlation_by_hand() -> None:
    mask = torch.tensor([[True, True, True, True, False]])
    returns = torch.tensor([[0.0, 0.0, 1.0, 1.0, 77.0]])
    assert explained_variance(returns, returns, mask) == 1.0
    assert explained_variance(torch.full((1, 5), 0.3), returns, mask) == pytest.approx(0.0), (
        "a constant explains nothing"
    )
    assert explained_variance(returns + 5, returns, mask) == 1.0, "variance: a bias does not count"
    half = torch.tensor([[0.0, 0.0, 0.0, 1.0, 3.0]])  # R - V = 0, 0, 1, 0: variance 3/16 of 4/16
    assert explained_variance(half, returns, mask) == pytest.approx(0.25)
    assert explained_variance(1 - returns, returns, mask) == pytest.approx(-3.0), "worse than a constant"
    assert correlation(half, returns, mask) == pytest.approx((1 / 8) / math.sqrt(3 / 16 * 1 / 4))
    assert correlation(2 - 3 * returns, returns, mask) == pytest.approx(-1.0)
    equal = torch.ones(1, 5)
    assert math.isnan(explained_variance(half, equal, mask))
    assert math.isnan(correlation(half, equal, mask))
    assert math.isnan(correlation(equal, returns, mask))
    assert math.isnan(explained_variance(half, returns, torch.zeros_like(mask)))


def test_the_histogram_counts_trainable_tokens_only_an_edge_in_the_bin_above() -> None:
    sigma = torch.tensor([[0.0, 0.1, 0.15, 0.2, 5.0, 0.0]])
    mask = torch.tensor([[True, True, True, True, True, False]])
    assert disagreement_histogram(sigma, mask, (0.1, 0.2)) == pytest.approx([0.2, 0.4, 0.4])
    assert disagreement_histogram(sigma, torch.zeros_like(mask), (0.1, 0.2)) == [0, 0, 0]
