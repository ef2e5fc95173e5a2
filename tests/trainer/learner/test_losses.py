"""Policy losses against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rollcage.trainer.learner.losses import LOSSES, LossInputs, OtherRows, importance_ratio


def run(
    name: str,
    ratios: Sequence[float],
    advantages: Sequence[float],
    *,
    old_to_rollout: float = 1.0,
    outcome: float = 1.0,
    other_rows: OtherRows | None = None,
    **options: float | str,
) -> tuple[list[float], dict[str, list[float]], list[float]]:
    """Return per-token loss, statistics and d loss / d logprobs for one row.

    ``ratios`` are those of the current policy to the old one; ``old_to_rollout`` is that of the old one to the sampler.
    """
    old = torch.full((1, len(ratios)), -1.3)
    logprobs = (old + torch.tensor([ratios]).log()).requires_grad_()
    inputs = LossInputs(
        logprobs=logprobs,
        old_logprobs=old,
        rollout_logprobs=old - math.log(old_to_rollout),
        advantages=torch.tensor([advantages]),
        loss_mask=torch.ones(1, len(ratios), dtype=torch.bool),
        outcomes=torch.tensor([outcome]),
        other_rows=other_rows,
    )
    loss, statistics = LOSSES[name](inputs, **options)
    loss.sum().backward()
    assert logprobs.grad is not None
    return loss[0].tolist(), {key: value[0].tolist() for key, value in statistics.items()}, logprobs.grad[0].tolist()


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_the_clipped_surrogate_and_its_gradient(name: str) -> None:
    loss, statistics, gradient = run(name, [1.5, 0.5, 1.1, 1.5, 0.5], [1.0, -1.0, 2.0, -1.0, 1.0], old_to_rollout=9.0)
    assert loss == pytest.approx([-1.2, 0.8, -2.2, 1.5, -0.5])
    assert statistics["clip_frac_high"] == [1, 0, 0, 0, 0]
    assert statistics["clip_frac_low"] == [0, 1, 0, 0, 0]
    assert gradient == pytest.approx([0, 0, -2.2, 1.5, -0.5])  # -r A, and nothing where the clip binds


def test_on_policy_the_gradient_is_minus_the_advantage() -> None:
    _, _, gradient = run("grpo", [1.0, 1.0], [0.7, -2.0])
    assert gradient == pytest.approx([-0.7, 2.0])


def test_clip_higher_widens_the_upper_side_only() -> None:
    loss, statistics, _ = run("grpo", [1.25, 1.35, 0.75], [1.0, 1.0, -1.0], e_lo=0.2, e_hi=0.28)
    assert loss == pytest.approx([-1.25, -1.28, 0.8])
    assert statistics["clip_frac_high"] == [0, 1, 0]


@pytest.mark.parametrize("name", ["ppo", "grpo", "decoupled_ppo"])
def test_dual_clip_bounds_the_loss_where_the_advantage_is_negative(name: str) -> None:
    loss, statistics, gradient = run(name, [5.0, 2.0, 5.0], [-1.0, -1.0, 1.0], dual_clip=3.0)
    assert loss == pytest.approx([3.0, 2.0, -1.2])
    assert statistics["dual_clip_frac"] == [1, 0, 0]
    assert gradient == pytest.approx([0.0, 2.0, 0.0])


def test_gspo_has_one_ratio_per_sequence() -> None:
    # ratios 2 and 0.5 cancel out: the sequence's is exp((ln 2 - ln 2) / 2) = 1, and nothing is clipped
    loss, statistics, gradient = run("gspo", [2.0, 0.5], [1.0, 1.0])
    assert loss == pytest.approx([-1.0, -1.0])
    assert gradient == pytest.approx([-1.0, -1.0])
    assert statistics["sequence_ratio"] == pytest.approx([1.0, 1.0])
    # ratios 1 and 1.44: the sequence's is 1.2, above 1.0004: the good sequence is clipped, the bad one is not
    loss, statistics, gradient = run("gspo", [1.0, 1.44], [1.0, -1.0])
    assert loss == pytest.approx([-1.0004, 1.2])
    assert gradient == pytest.approx([0.0, 1.2])
    assert statistics["clip_frac_high"] == [1, 0]
    # the sequence's ratio is 0.9, below 0.9997: now the bad one is
    loss, statistics, gradient = run("gspo", [1.0, 0.81], [1.0, -1.0])
    assert loss == pytest.approx([-0.9, 0.9997])
    assert gradient == pytest.approx([-0.9, 0.0])
    assert statistics["clip_frac_low"] == [0, 1]


def test_gspo_per_token_advantages_are_each_tokens_own() -> None:
    _, _, gradient = run("gspo", [1.1, 1 / 1.1], [0.5, 3.0], e_lo=0.5, e_hi=0.5)
    assert gradient == pytest.approx([-0.5, -3.0])


def test_decoupled_ppo_clips_around_the_trainers_policy_and_weighs_by_the_samplers() -> None:
    ratios, advantages = [1.5, 1.1, 0.5], [1.0, 2.0, -1.0]
    loss, statistics, gradient = run("decoupled_ppo", ratios, advantages, old_to_rollout=0.5)
    assert loss == pytest.approx([-0.6, -1.1, 0.4])  # half of ppo's
    assert gradient == pytest.approx([0, -1.1, 0])
    assert statistics["clip_frac_high"] == [1, 0, 0]
    assert statistics["clip_frac_low"] == [0, 0, 1]
    assert statistics["weight_capped"] == [0, 0, 0]
    capped, statistics, _ = run("decoupled_ppo", ratios, advantages, old_to_rollout=5.0)
    assert capped == pytest.approx([-2.4, -4.4, 1.6])  # w_max = 2
    assert statistics["weight_capped"] == [1, 1, 1]
    assert statistics["weight"] == [2, 2, 2]


def test_tis_weighs_the_policy_gradient_by_the_capped_ratio_to_the_sampler() -> None:
    # ratios to the sampler: 2 * 0.5 = 1, 4 * 0.5 = 2 and 0.5 * 0.5 = 0.25
    _, statistics, gradient = run("tis", [2.0, 4.0, 0.5], [1.0, 1.0, -2.0], old_to_rollout=0.5)
    assert gradient == pytest.approx([-1.0, -1.0, 0.5])
    assert statistics["clip_frac_high"] == [0, 1, 0]
    assert statistics["weight"] == pytest.approx([1.0, 1.0, 0.25])
    _, _, gradient = run("tis", [2.0, 4.0, 0.5], [1.0, 1.0, -2.0], old_to_rollout=0.5, cap=3.0)
    assert gradient == pytest.approx([-1.0, -2.0, 0.5])


def test_cispo_clips_the_weight_and_keeps_every_tokens_gradient() -> None:
    # ratios to the sampler: 1, 2 and 0.25; by default only the upper side is bounded, by 1.2
    _, statistics, gradient = run("cispo", [2.0, 4.0, 0.5], [1.0, 1.0, -2.0], old_to_rollout=0.5)
    assert gradient == pytest.approx([-1.0, -1.2, 0.5])
    assert statistics["clip_frac_high"] == [0, 1, 0]
    assert statistics["clip_frac_low"] == [0, 0, 0]
    _, statistics, gradient = run("cispo", [2.0, 4.0, 0.5], [1.0, 1.0, -2.0], old_to_rollout=0.5, e_lo=0.1, e_hi=0.1)
    assert gradient == pytest.approx([-1.0, -1.1, 1.8])
    assert statistics["clip_frac_low"] == [0, 0, 1]


def test_topr_imitates_good_trajectories_and_tapers_bad_ones_by_their_whole_ratio() -> None:
    # trajectory's ratio to the sampler: (2 * 0.5) * (0.5 * 0.5) = 0.25
    _, _, gradient = run("topr", [2.0, 0.5], [2.0, 3.0], old_to_rollout=0.5, outcome=1.0)
    assert gradient == pytest.approx([-2.0, -3.0]), "no ratio where it did well"
    _, statistics, gradient = run("topr", [2.0, 0.5], [-2.0, -3.0], old_to_rollout=0.5, outcome=-1.0)
    assert gradient == pytest.approx([0.25 * 2, 0.25 * 3])
    assert statistics["weight"] == pytest.approx([0.25, 0.25])
    _, statistics, gradient = run("topr", [4.0, 2.0], [-2.0, -3.0], outcome=-1.0)  # 8, which counts as 1
    assert gradient == pytest.approx([2.0, 3.0])
    assert statistics["clip_frac_high"] == [1, 1]


def test_topr_goes_by_the_sign_of_the_trajectory_not_of_the_tokens_advantage() -> None:
    _, _, gradient = run("topr", [0.5, 0.5], [2.0, -3.0], outcome=-0.1)
    assert gradient == pytest.approx([-0.25 * 2, 0.25 * 3])
    _, _, gradient = run("topr", [0.5, 0.5], [2.0, -3.0], outcome=0.1)
    assert gradient == pytest.approx([-2.0, 3.0])
    loss, _, gradient = run("topr", [0.5, 0.5], [2.0, -3.0], outcome=0.0)
    assert (loss, gradient) == ([0, 0], [0, 0]), "a trajectory that meets its baseline contributes nothing"


def test_topr_by_token() -> None:
    # ratios to the sampler: 1, 2 (counts as 1) and 0.25
    _, statistics, gradient = run("topr", [2.0, 4.0, 0.5], [-1.0] * 3, old_to_rollout=0.5, outcome=-1.0, level="token")
    assert gradient == pytest.approx([1.0, 1.0, 0.25])
    assert statistics["clip_frac_high"] == [0, 1, 0]


def test_weighted_topr_weighs_both_sides() -> None:
    options = {"w_pos": 0.5, "w_neg": 2.0}
    _, _, gradient = run("weighted_topr", [0.5, 0.5], [1.0, 1.0], outcome=1.0, **options)
    assert gradient == pytest.approx([-0.5, -0.5])
    _, _, gradient = run("weighted_topr", [0.5, 0.5], [-1.0, -1.0], outcome=-1.0, **options)
    assert gradient == pytest.approx([2 * 0.25, 2 * 0.25])
    assert run("weighted_topr", [0.5], [-1.0], outcome=-1.0)[2] == run("topr", [0.5], [-1.0], outcome=-1.0)[2]


@pytest.mark.parametrize("name", ["topr", "gspo"])
def test_a_sequence_in_two_rows_has_the_ratio_of_both(name: str) -> None:
    # The other row holds two tokens: logprobs - old_logprobs is ln 2 and 0 there, - rollout_logprobs -ln 2 and -ln 4.
    log2 = math.log(2)
    other = OtherRows(*(torch.tensor([value]) for value in (2.0, log2, -3 * log2)))
    _, statistics, gradient = run(
        name, [2.0, 1.0], [-1.0, -1.0], outcome=-1.0, other_rows=other, **({"e_hi": 9.0} if name == "gspo" else {})
    )
    if name == "topr":
        expected = math.exp(log2 - 3 * log2)
    else:
        expected = math.exp((log2 + log2) / 4)
        assert statistics["sequence_ratio"] == pytest.approx([expected] * 2)
    assert gradient == pytest.approx([expected, expected])


def test_kimi15_pulls_back_to_the_trainers_policy() -> None:
    loss, _, gradient = run("kimi15", [math.e, 1.0], [2.0, -1.0], tau=0.5)
    assert loss == pytest.approx([-2.0 * -0.3 + 0.25 * 1.0, -1.3])  # logprobs are -1.3 + 1 and -1.3
    assert gradient == pytest.approx([-2.0 + 0.5 * 1.0, 1.0])
    assert run("kimi15", [math.e], [0.0])[2] == pytest.approx([0.1]), "also where there is no advantage; tau is 0.1"


def test_reinforce_has_no_correction_at_all() -> None:
    loss, statistics, gradient = run("reinforce", [5.0, 0.1], [2.0, -1.0], old_to_rollout=7.0)
    assert gradient == [-2.0, 1.0]
    assert loss == pytest.approx([2 * (1.3 - math.log(5)), -1.3 + math.log(0.1)])
    assert statistics["weight"] == [1, 1]


def token_inputs(bad: float) -> LossInputs:
    """One token, and one under the mask that holds ``bad`` everywhere."""
    values: list[Tensor] = [torch.tensor([[-1.0, bad]]) for _ in range(4)]
    values[0].requires_grad_()
    return LossInputs(*values, torch.tensor([[True, False]]), torch.tensor([-1.0]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_T8_nan_or_inf_under_mask_0_gives_a_finite_loss_and_gradient(name: str, bad: float) -> None:
    inputs = token_inputs(bad)
    loss, statistics = LOSSES[name](inputs)
    loss.sum().backward()
    assert abs(loss[0, 0]) == 1.0
    assert loss[0, 1] == 0.0
    assert inputs.logprobs.grad is not None
    assert inputs.logprobs.grad.tolist() == [[1.0, 0.0]]
    assert {"clip_frac_low", "clip_frac_high"} <= statistics.keys()
    assert all(value[0, 1] == 0 for value in statistics.values())
    assert not any(value.requires_grad for value in statistics.values())


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_T8_an_all_masked_micro_batch_gives_zero(name: str) -> None:
    logprobs = torch.full((2, 3), math.nan, requires_grad=True)
    nan = torch.full((2, 3), math.nan)
    loss, _ = LOSSES[name](LossInputs(logprobs, nan, nan, nan, torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2)))
    loss.sum().backward()
    assert logprobs.grad is not None
    assert not loss.any()
    assert not logprobs.grad.any()


@pytest.mark.parametrize("advantage", [-1.0, 1.0])
@pytest.mark.parametrize("distance", [2000.0, -2000.0])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_a_ratio_too_large_or_small_for_a_float_stays_finite(name: str, distance: float, advantage: float) -> None:
    logprobs = torch.tensor([[-2001.0]], requires_grad=True)
    old, mask = torch.tensor([[-2001.0 + distance]]), torch.tensor([[True]])
    inputs = LossInputs(logprobs, old, old, torch.tensor([[advantage]]), mask, torch.tensor([advantage]))
    loss, statistics = LOSSES[name](inputs)
    loss.sum().backward()
    assert logprobs.grad is not None
    assert all(torch.isfinite(value).all() for value in (loss, logprobs.grad, *statistics.values()))


def test_the_importance_ratio_is_one_where_masked() -> None:
    ratio = importance_ratio(
        torch.tensor([[-1.0, math.nan]]), torch.tensor([[-1.5, 3.0]]), torch.tensor([[True, False]])
    )
    assert ratio[0].tolist() == pytest.approx([math.exp(0.5), 1.0])
