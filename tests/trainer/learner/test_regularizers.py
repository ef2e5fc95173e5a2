"""KL penalties and entropy bonus against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from rollcage.trainer.learner.regularizers import KL_PENALTIES, entropy_bonus


@pytest.mark.parametrize(
    ("name", "expected", "gradient"),
    [("k1", 0.5, 1.0), ("k2", 0.125, 0.5), ("k3", math.exp(-0.5) - 0.5, 1 - math.exp(-0.5))],
)
def test_kl_penalties_to_the_reference(name: str, expected: float, gradient: float) -> None:
    logprobs = torch.tensor([[-1.0, math.nan]], requires_grad=True)  # d = logprobs - ref_logprobs = 0.5
    penalty = KL_PENALTIES[name](logprobs, torch.tensor([[-1.5, math.inf]]), torch.tensor([[True, False]]))
    penalty.sum().backward()
    assert penalty[0].tolist() == pytest.approx([expected, 0.0])
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([gradient, 0.0])


def test_k3_is_never_negative_and_zero_at_the_reference() -> None:
    logprobs, mask = torch.linspace(-8, 0, 41)[None], torch.ones(1, 41, dtype=torch.bool)
    penalty = KL_PENALTIES["k3"](logprobs, torch.full((1, 41), -4.0), mask)
    assert (penalty >= 0).all()
    assert penalty[0, 20] == 0


def test_the_entropy_bonus_rewards_entropy_on_unmasked_tokens() -> None:
    entropy = torch.tensor([[2.0, math.nan]], requires_grad=True)
    loss = entropy_bonus(entropy, torch.tensor([[True, False]]), 0.01)
    loss.sum().backward()
    assert loss[0].tolist() == pytest.approx([-0.02, 0.0])
    assert entropy.grad is not None
    assert entropy.grad[0].tolist() == pytest.approx([-0.01, 0.0])
