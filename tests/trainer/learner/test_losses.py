"""Policy losses and regularisers against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rollcage.trainer.learner.losses import KL_PENALTIES, LOSSES, entropy_bonus, importance_ratio, ppo


def run(
    name: str, ratios: list[float], advantages: list[float], old_to_rollout: float = math.exp(7.0), **options: float
) -> tuple[Tensor, dict, Tensor]:
    """Return per-token loss, statistics and d loss / d logprobs for one row with the given importance ratios."""
    old = torch.full((1, len(ratios)), -1.3)
    logprobs = (old + torch.tensor([ratios]).log()).requires_grad_()
    mask = torch.ones(1, len(ratios), dtype=torch.bool)
    loss, statistics = LOSSES[name](
        logprobs, old, old - math.log(old_to_rollout), torch.tensor([advantages]), mask, **options
    )
    loss.sum().backward()
    assert logprobs.grad is not None
    return loss.detach()[0], {key: value[0] for key, value in statistics.items()}, logprobs.grad[0]


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_the_clipped_surrogate_and_its_gradient(name: str) -> None:
    loss, statistics, gradient = run(name, [1.5, 0.5, 1.1, 1.5, 0.5], [1.0, -1.0, 2.0, -1.0, 1.0])
    assert loss.tolist() == pytest.approx([-1.2, 0.8, -2.2, 1.5, -0.5])
    assert statistics["clip_frac_high"].tolist() == [1, 0, 0, 0, 0]
    assert statistics["clip_frac_low"].tolist() == [0, 1, 0, 0, 0]
    assert gradient.tolist() == pytest.approx([0, 0, -2.2, 1.5, -0.5])  # -r A, and nothing where the clip binds


def test_on_policy_the_gradient_is_minus_the_advantage() -> None:
    _, _, gradient = run("grpo", [1.0, 1.0], [0.7, -2.0])
    assert gradient.tolist() == pytest.approx([-0.7, 2.0])


def test_clip_higher_widens_the_upper_side_only() -> None:
    loss, statistics, _ = run("grpo", [1.25, 1.35, 0.75], [1.0, 1.0, -1.0], e_lo=0.2, e_hi=0.28)
    assert loss.tolist() == pytest.approx([-1.25, -1.28, 0.8])
    assert statistics["clip_frac_high"].tolist() == [0, 1, 0]


def test_dual_clip_bounds_the_loss_where_the_advantage_is_negative() -> None:
    loss, statistics, gradient = run("ppo", [5.0, 2.0, 5.0], [-1.0, -1.0, 1.0], dual_clip=3.0)
    assert loss.tolist() == pytest.approx([3.0, 2.0, -1.2])
    assert statistics["dual_clip_frac"].tolist() == [1, 0, 0]
    assert gradient.tolist() == pytest.approx([0.0, 2.0, 0.0])


def test_decoupled_ppo_clips_around_the_trainers_policy_and_weighs_by_the_samplers() -> None:
    ratios, advantages = [1.5, 1.1, 0.5], [1.0, 2.0, -1.0]
    loss, statistics, gradient = run("decoupled_ppo", ratios, advantages, old_to_rollout=0.5)
    assert loss.tolist() == pytest.approx([-0.6, -1.1, 0.4])  # half of ppo's
    assert gradient.tolist() == pytest.approx([0, -1.1, 0])
    assert statistics["clip_frac_high"].tolist() == [1, 0, 0]
    assert statistics["weight_capped"].tolist() == [0, 0, 0]
    capped, statistics, _ = run("decoupled_ppo", ratios, advantages, old_to_rollout=5.0)
    assert capped.tolist() == pytest.approx([-2.4, -4.4, 1.6])  # w_max = 2
    assert statistics["weight_capped"].tolist() == [1, 1, 1]


def test_tis_weighs_the_policy_gradient_by_the_capped_ratio_to_the_sampler() -> None:
    # ratios to the sampler: 2 * 0.5 = 1, 4 * 0.5 = 2 and 0.5 * 0.5 = 0.25
    _, statistics, gradient = run("tis", [2.0, 4.0, 0.5], [1.0, 1.0, -2.0], old_to_rollout=0.5)
    assert gradient.tolist() == pytest.approx([-1.0, -1.0, 0.5])
    assert statistics["weight_capped"].tolist() == [0, 1, 0]
    _, _, gradient = run("tis", [2.0, 4.0, 0.5], [1.0, 1.0, -2.0], old_to_rollout=0.5, cap=3.0)
    assert gradient.tolist() == pytest.approx([-1.0, -2.0, 0.5])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_T8_nan_or_inf_under_mask_0_gives_a_finite_loss_and_gradient(name: str, bad: float) -> None:
    inputs = [torch.tensor([[-1.0, bad]]) for _ in range(4)]
    inputs[0].requires_grad_()
    loss, statistics = LOSSES[name](*inputs, torch.tensor([[True, False]]))
    loss.sum().backward()
    assert abs(loss[0, 0]) == 1.0
    assert loss[0, 1] == 0.0
    assert inputs[0].grad is not None
    assert inputs[0].grad.tolist() == [[1.0, 0.0]]
    assert all(value[0, 1] == 0 for value in statistics.values())


def test_a_ratio_too_large_for_a_float_stays_finite() -> None:
    old, logprobs = torch.tensor([[-2000.0]]), torch.tensor([[-1.0]], requires_grad=True)
    loss, _ = ppo(logprobs, old, old, torch.tensor([[-1.0]]), torch.tensor([[True]]))
    loss.sum().backward()
    assert torch.isfinite(loss).all()
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()


def test_the_importance_ratio_is_one_where_masked() -> None:
    ratio = importance_ratio(
        torch.tensor([[-1.0, math.nan]]), torch.tensor([[-1.5, 3.0]]), torch.tensor([[True, False]])
    )
    assert ratio[0].tolist() == pytest.approx([math.exp(0.5), 1.0])


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
