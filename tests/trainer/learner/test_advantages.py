"""Advantage estimators against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from rollcage.trainer.learner.advantages import (
    ADVANTAGES,
    gae,
    gigpo,
    outcomes,
    reinforce_pp,
    remax,
    turn_return,
    whiten,
)
from rollcage.trainer.learner.batch import Batch

Rows = Callable[..., Batch]
GROUP_ESTIMATORS = ("grpo", "rloo", "dr_grpo")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", [(1 - 2) / (1 + 1e-6), 0.0, (3 - 2) / (1 + 1e-6)]),  # unbiased std of 1, 2, 3 is 1
        ("dr_grpo", [-1.0, 0.0, 1.0]),
        ("rloo", [1 - 2.5, 0.0, 3 - 1.5]),
    ],
)
def test_group_estimators_by_hand(rows: Rows, name: str, expected: list[float]) -> None:
    batch = rows([[0, 1, 1], [0, 1, 0], [0, 1, 1]], returns=[1, 2, 3])
    advantages = ADVANTAGES[name](batch)
    assert advantages.dtype == np.float32
    assert advantages[:, 1].tolist() == pytest.approx(expected)
    assert advantages[0].tolist() == pytest.approx([0.0, expected[0], expected[0]])
    assert advantages[1, 2] == 0, "no advantage where the policy sampled nothing"


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_groups_do_not_see_each_other_and_may_stand_in_any_order(rows: Rows, name: str) -> None:
    apart = ADVANTAGES[name](rows([[0, 1]] * 2, returns=[0, 1]))[:, 1]
    mixed = ADVANTAGES[name](rows([[0, 1]] * 4, returns=[0, 50, 1, 90], groups=[3, 7, 3, 7]))[:, 1]
    assert mixed[[0, 2]].tolist() == pytest.approx(apart.tolist())


@pytest.mark.parametrize("returns", [[0.1, 0.1, 0.1], [0.3]])
@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_a_group_of_one_or_of_equals_has_exactly_zero_advantage(rows: Rows, name: str, returns: list[float]) -> None:
    advantages = ADVANTAGES[name](rows([[0, 1]] * len(returns), returns=returns))
    assert not advantages.any()


@pytest.mark.parametrize("name", GROUP_ESTIMATORS)
def test_statistics_are_taken_once_per_episode_however_many_rows_it_has(rows: Rows, name: str) -> None:
    whole = ADVANTAGES[name](rows([[0, 1]] * 3, returns=[0, 0, 3]))[:, 1]
    split = ADVANTAGES[name](rows([[0, 1]] * 5, returns=[0, 0, 3, 3, 3], episodes=[0, 1, 2, 2, 2]))[:, 1]
    assert split.tolist() == pytest.approx([*whole.tolist(), whole[2], whole[2]])


def test_gae_by_hand(rows: Rows) -> None:
    # gamma 0.5, lambda 0.5; V = 1, 2, 3 before the tokens at 1, 2, 3; reward 4 on the last.
    batch = rows([[0, 1, 1, 1]], returns=[4], rewards=[[0, 0, 0, 4]])
    advantages = gae(batch, values=np.array([[9.0, 1.0, 2.0, 3.0]]), gamma=0.5, lam=0.5)
    third = 4 - 3
    second = (0.5 * 3 - 2) + 0.25 * third
    first = (0.5 * 2 - 1) + 0.25 * second
    assert advantages[0].tolist() == pytest.approx([0, first, second, third])


def test_gae_with_lambda_and_gamma_one_is_the_return_minus_the_value(rows: Rows) -> None:
    batch = rows([[0, 1, 1, 0, 1]], returns=[3], rewards=[[0, 0, 1, 0, 2]])
    values = np.array([[0.0, 0.1, 0.2, 99.0, 0.4]])
    assert gae(batch, values=values)[0].tolist() == pytest.approx([0, 3 - 0.1, 3 - 0.2, 0, 2 - 0.4])


def test_gae_skips_observation_tokens_instead_of_counting_them_as_steps(rows: Rows) -> None:
    with_observation = rows([[0, 1, 0, 0, 1]], returns=[1], rewards=[[0, 0, 0, 0, 1]])
    without = rows([[0, 1, 1]], returns=[1], rewards=[[0, 0, 1]])
    options = {"gamma": 0.9, "lam": 0.8}
    long = gae(with_observation, values=np.array([[7.0, 0.2, 7.0, 7.0, 0.6]]), **options)[0]
    short = gae(without, values=np.array([[7.0, 0.2, 0.6]]), **options)[0]
    assert long[[1, 4]].tolist() == pytest.approx(short[1:].tolist())
    assert not long[[0, 2, 3]].any()


@pytest.mark.parametrize("reward_at", [2, 3, 4])
def test_T9_a_trajectory_that_ends_in_observation_tokens_delivers_its_terminal_reward(
    rows: Rows, reward_at: int
) -> None:
    rewards = np.zeros((1, 5))
    rewards[0, reward_at] = 1.0  # on the last trainable token, or left on an observation token behind it
    batch = rows([[0, 1, 1, 0, 0]], returns=[1], rewards=rewards)
    assert gae(batch, values=np.zeros((1, 5)), gamma=0.0)[0].tolist() == [0, 0, 1, 0, 0]


def test_rewards_of_several_turns_each_reach_their_turn(rows: Rows) -> None:
    batch = rows([[0, 1, 1, 0, 1, 0]], returns=[6], rewards=[[0, 0, 1, 0, 2, 3]])
    assert gae(batch, values=np.zeros((1, 6)), gamma=0.0)[0].tolist() == [0, 0, 1, 0, 5, 0]


def test_gae_goes_on_over_the_rows_of_an_episode(rows: Rows) -> None:
    split = rows([[0, 1, 1], [0, 0, 1]], returns=[1, 1], episodes=[0, 0], rewards=[[0, 0, 0], [0, 0, 1]])
    whole = rows([[0, 1, 1, 1]], returns=[1], rewards=[[0, 0, 0, 1]])
    options = {"gamma": 0.9, "lam": 0.7}
    in_rows = gae(split, values=np.array([[5, 0.1, 0.2], [5, 5, 0.3]]), **options)
    in_one = gae(whole, values=np.array([[5, 0.1, 0.2, 0.3]]), **options)
    assert in_rows[split.loss_mask].tolist() == pytest.approx(in_one[whole.loss_mask].tolist())


def test_a_truncated_episode_is_bootstrapped_only_on_request(rows: Rows) -> None:
    batch = rows([[0, 1], [0, 1]], returns=[0, 0], truncated=[True, False])
    values, after = np.array([[0, 0.5], [0, 0.5]]), np.array([2.0, 2.0])
    assert gae(batch, values=values)[:, 1].tolist() == pytest.approx([-0.5, -0.5])
    bootstrapped = gae(batch, values=values, gamma=0.9, bootstrap_truncated=True, final_values=after)
    assert bootstrapped[:, 1].tolist() == pytest.approx([0.9 * 2 - 0.5, -0.5])
    with pytest.raises(ValueError, match="final_values"):
        gae(batch, values=values, bootstrap_truncated=True)


def test_an_episode_without_a_trainable_token_has_no_advantage(rows: Rows) -> None:
    batch = rows([[0, 0], [0, 1]], returns=[1, 0], rewards=[[0, 1], [0, 0]])
    assert not gae(batch, values=np.zeros((2, 2))).any()


def test_whitening_takes_mean_and_unbiased_std_over_trainable_tokens(rows: Rows) -> None:
    mask = rows([[0, 1, 1], [0, 1, 0]], returns=[0, 0]).loss_mask
    whitened = whiten(np.array([[50, 1, 2], [50, 3, 50]], np.float32), mask)
    assert whitened.tolist() == [pytest.approx([0, -1, 0], abs=1e-5), pytest.approx([0, 1, 0], abs=1e-5)]
    assert not whiten(np.full((2, 3), 0.3, np.float32), mask).any()


def test_reinforce_pp_whitens_the_returns_over_the_tokens_of_the_batch(rows: Rows) -> None:
    # two tokens of return 1 and one of return 4: mean 2, unbiased std sqrt(3), whatever the groups
    batch = rows([[0, 1, 1], [0, 1, 0]], returns=[1, 4], groups=[5, 9])
    advantages = reinforce_pp(batch)
    std = math.sqrt(3) + 1e-6
    assert advantages.tolist() == [pytest.approx([0, -1 / std, -1 / std]), pytest.approx([0, 2 / std, 0])]


def test_reinforce_pp_takes_the_kl_from_the_token_on_out_of_the_reward(rows: Rows) -> None:
    # The episode of return 2 fills two rows: kl 1, 2, 3 on its tokens; 2 - 0.1 * (6, 5, 3) = 1.4, 1.5, 1.7. The other
    # one: 1 - 0.1 * 4 = 0.6. Mean 1.3; squared distances 0.01 + 0.04 + 0.16 + 0.49 = 0.7.
    batch = rows([[0, 1, 1], [0, 0, 1], [0, 1, 0]], returns=[2, 2, 1], episodes=[0, 0, 1])
    kl = np.array([[np.nan, 1, 2], [np.inf, np.nan, 3], [np.nan, 4, np.nan]])
    advantages = reinforce_pp(batch, kl_coef=0.1, kl=kl)
    std = math.sqrt(0.7 / 3) + 1e-6
    expected = [[0, 0.1, 0.2], [0, 0, 0.4], [0, -0.7, 0]]
    assert advantages.tolist() == [pytest.approx([value / std for value in row]) for row in expected]
    with pytest.raises(ValueError, match="needs kl"):
        reinforce_pp(batch, kl_coef=0.1)


def test_remax_compares_with_the_greedy_rollout_of_the_task(rows: Rows) -> None:
    batch = rows([[0, 1, 1]] * 3, returns=[1, 0, 2], groups=[0, 0, 1], greedy_returns=[0.25, 0.25, 2])
    assert remax(batch).tolist() == [[0, 0.75, 0.75], [0, -0.25, -0.25], [0, 0, 0]]
    with pytest.raises(ValueError, match="no greedy return of group 1"):
        remax(rows([[0, 1]] * 2, returns=[1, 0], groups=[0, 1], greedy_returns=[0, np.nan]))


TWO_TURNS = [[0, 1, 1, 0, 1]]
"""A row with two turns: tokens 1 and 2, and token 4."""


def test_turn_return_by_hand(rows: Rows) -> None:
    # gamma 0.5; rewards 1, 4: G = 1 + 0.5 * 4 = 3, 4. The other episode: rewards 0, 2: G = 1, 2. Mean of the four turns
    # 2.5, squared distances 0.25 + 2.25 + 2.25 + 0.25 = 5. The first turn's second token does not count again.
    batch = rows(
        TWO_TURNS * 2,
        returns=[5, 2],
        rewards=[[0, 0, 1, 0, 4], [0, 0, 0, 0, 2]],
        turns=[[-1, 0, 0, -1, 1]] * 2,
        groups=[0, 1],
    )
    std = math.sqrt(5 / 3) + 1e-6
    expected = [[0, 0.5, 0.5, 0, 1.5], [0, -1.5, -1.5, 0, -0.5]]
    assert turn_return(batch, gamma=0.5).tolist() == [pytest.approx([v / std for v in row]) for row in expected]


def test_turn_return_and_gigpo_discount_by_0_95_a_turn_unless_told_otherwise(rows: Rows) -> None:
    batch = rows(TWO_TURNS * 2, returns=[1, 0], rewards=[[0, 0, 0, 0, 1], [0] * 5], turns=[[-1, 0, 0, -1, 1]] * 2)
    for estimator in (turn_return, gigpo):
        assert np.array_equal(estimator(batch), estimator(batch, gamma=0.95))
        assert not np.array_equal(estimator(batch), estimator(batch, gamma=0.9))
    # G = 0.95, 1, 0, 0
    returns = np.array([0.95, 1, 0, 0])
    expected = (returns - returns.mean()) / (returns.std(ddof=1) + 1e-6)
    assert turn_return(batch)[:, [1, 4]].ravel().tolist() == pytest.approx(expected.tolist())


def test_gigpo_by_hand(rows: Rows) -> None:
    # Three episodes of one task, gamma 0.5. All begin at observation 0; the first two go on at 7, the third at 8.
    # Rewards (0, 2), (0, 0), (1, 0): R = 2, 0, 1: mean 1, std 1. First turns: G = 1, 0, 1: mean 2/3, std sqrt(1/3).
    # Second turns at 7: G = 2, 0: mean 1, std sqrt(2). At 8 there is nothing to compare with.
    batch = rows(
        TWO_TURNS * 3,
        returns=[2, 0, 1],
        rewards=[[0, 0, 0, 0, 2], [0] * 5, [0, 0, 1, 0, 0]],
        turns=[[-1, 0, 0, -1, 1]] * 3,
        anchors=[[-1, 0, 0, -1, 7], [-1, 0, 0, -1, 7], [-1, 0, 0, -1, 8]],
    )
    advantages = gigpo(batch, gamma=0.5, w_step=10.0)
    third = 10 / 3 / (math.sqrt(1 / 3) + 1e-6)
    half = 10 / (math.sqrt(2) + 1e-6)
    by_hand = [[1 + third, 1 + half], [-1 - 2 * third, -1 - half], [0 + third, 0]]
    assert advantages[:, [1, 4]].tolist() == [pytest.approx(row, rel=1e-5, abs=1e-6) for row in by_hand]
    assert np.array_equal(advantages[:, 1], advantages[:, 2]), "all tokens of a turn share its advantage"
    assert not advantages[:, [0, 3]].any()
    assert gigpo(batch, w_step=0.0) == pytest.approx(ADVANTAGES["grpo"](batch))


def test_gigpo_never_merges_equal_states_of_different_tasks(rows: Rows) -> None:
    def step_credit(groups: list[int]) -> np.ndarray:
        return gigpo(rows([[0, 1]] * 4, returns=[0, 1, 5, 9], rewards=[[0, 0], [0, 1], [0, 5], [0, 9]], groups=groups))

    together, apart = step_credit([0, 0, 0, 0]), step_credit([0, 0, 1, 1])
    alone = gigpo(rows([[0, 1]] * 2, returns=[0, 1], rewards=[[0, 0], [0, 1]]))
    assert apart[:2] == pytest.approx(alone)
    assert together[:2] != pytest.approx(alone)


def test_gigpo_takes_episode_statistics_once_per_episode(rows: Rows) -> None:
    # One episode has three turns in three rows, the others one: R = 3, 0, 0 all the same.
    batch = rows(
        [[0, 1]] * 5,
        returns=[3, 3, 3, 0, 0],
        episodes=[0, 0, 0, 1, 2],
        rewards=[[0, 1], [0, 1], [0, 1], [0, 0], [0, 0]],
        turns=[[-1, 0], [-1, 1], [-1, 2], [-1, 0], [-1, 0]],
        anchors=[[-1, 0], [-1, 1], [-1, 2], [-1, 3], [-1, 4]],
    )
    whole = ADVANTAGES["grpo"](rows([[0, 1]] * 3, returns=[3, 0, 0]))[:, 1]
    assert gigpo(batch)[:, 1].tolist() == pytest.approx([whole[0]] * 3 + [whole[1], whole[2]])


def test_a_state_that_an_episode_visits_twice_counts_twice(rows: Rows) -> None:
    batch = rows(
        TWO_TURNS,
        returns=[1],
        rewards=[[0, 0, 0, 0, 1]],
        turns=[[-1, 0, 0, -1, 1]],
        anchors=[[-1, 4, 4, -1, 4]],
    )
    advantages = gigpo(batch, gamma=0.5)[0]  # G = 0.5, 1: mean 0.75, std sqrt(0.125)
    assert advantages[[1, 4]].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5], rel=1e-4)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        ("grpo", [-0.5, 0.5, -2, 2]),  # against the group's mean, 0.5 and 6
        ("gigpo", [-0.5, 0.5, -2, 2]),
        ("turn_return", [-3.25, -2.25, 0.75, 4.75]),  # against the batch's, 3.25
        ("reinforce_pp", [-3.25, -2.25, 0.75, 4.75]),
        ("remax", [-1, 0, 3, 7]),  # against the greedy rollouts
    ],
)
def test_how_well_an_episode_did_is_told_by_its_baseline(rows: Rows, advantage: str, expected: list[float]) -> None:
    batch = rows(
        [[0, 1]] * 5, returns=[0, 1, 4, 8, 8], groups=[0, 0, 1, 1, 1], episodes=[0, 1, 2, 3, 3], greedy_returns=[1] * 5
    )
    assert outcomes(batch, advantage).tolist() == [*expected, expected[-1]]
    equal = rows([[0, 1]] * 3, returns=[0.1] * 3, greedy_returns=[0.1] * 3)
    assert not outcomes(equal, advantage).any()


def estimate(name: str, batch: Batch) -> np.ndarray:
    """Run any estimator, with values where it needs them."""
    values = np.random.default_rng(1).normal(size=(100, 100))[: len(batch), : batch.loss_mask.shape[1]]
    options = {"values": values} if name == "gae" else {"kl_coef": 0.1, "kl": values} if name == "reinforce_pp" else {}
    return ADVANTAGES[name](batch, **options)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_padding_and_what_stands_in_it_change_nothing(random_batch: Callable[..., Batch], name: str) -> None:
    batch = random_batch(seed=3)
    expected = estimate(name, batch)
    assert np.isfinite(expected).all()
    assert expected.any()
    assert not expected[~batch.loss_mask].any()
    padded = {}
    for field in Batch.__slots__:
        value = getattr(batch, field)
        if value.ndim == 2:
            fill = {"rewards": 0, "turns": -1, "anchors": -1, "rollout_logprobs": np.nan}.get(field, 0)
            value = np.pad(value, ((0, 0), (0, 5)), constant_values=fill)
        padded[field] = value
    assert np.array_equal(estimate(name, Batch(**padded))[:, :-5], expected)


@pytest.mark.parametrize("name", sorted(set(ADVANTAGES) - {"gae", "reinforce_pp"}))
def test_the_order_of_rows_changes_nothing(random_batch: Callable[..., Batch], name: str) -> None:
    batch = random_batch(seed=4)
    order = np.random.default_rng(0).permutation(len(batch))
    shuffled = Batch(*(getattr(batch, field)[order] for field in Batch.__slots__))
    np.testing.assert_allclose(estimate(name, shuffled), estimate(name, batch)[order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_T8_a_batch_without_a_trainable_token_has_no_advantage(rows: Rows, name: str) -> None:
    assert not estimate(name, rows([[0, 0]] * 3, returns=[1, 2, 3], greedy_returns=[0] * 3)).any()


@pytest.mark.parametrize("name", ["turn_return", "gigpo"])
def test_T9_the_reward_of_a_trajectory_that_ends_in_observation_tokens_reaches_its_last_turn(
    rows: Rows, name: str
) -> None:
    batch = rows(
        [[0, 1, 1, 0, 1, 0, 0]] * 2,
        returns=[1, 0],
        rewards=[[0] * 6 + [1], [0] * 7],  # left on the observation behind it
        turns=[[-1, 0, 0, -1, 1, -1, -1]] * 2,
        anchors=[[-1, 0, 0, -1, 1, -1, -1]] * 2,
    )
    advantages = ADVANTAGES[name](batch, gamma=0.0)
    assert advantages[0, 4] > 0 > advantages[1, 4]
    if name == "gigpo":
        assert gigpo(batch, gamma=0.0, w_episode=0.0)[0, :4].tolist() == [0, 0, 0, 0], "the first turn earned nothing"


@pytest.mark.parametrize("scale", [1e-12, 1e15])
@pytest.mark.parametrize("name", sorted(ADVANTAGES))
def test_tiny_and_huge_rewards_stay_finite(random_batch: Callable[..., Batch], name: str, scale: float) -> None:
    batch = random_batch(seed=5)
    for field in ("returns", "rewards", "greedy_returns"):
        setattr(batch, field, (getattr(batch, field) * scale).astype(np.float32))
    assert np.isfinite(estimate(name, batch)).all()
