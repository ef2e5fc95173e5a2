"""Advantage estimators against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rollcage.trainer.learner.advantages import ADVANTAGES, gae, whiten
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
