"""From trajectories to the batch: every token, reward, turn and observation in its place."""

from __future__ import annotations

import numpy as np
import pytest

from rollcage.trainer.learner.batch import make_batch
from rollcage.trainer.types import Group, Segment, Trajectory, TurnRecord


def segment(sampled: list[int]) -> Segment:
    """Return a segment whose sampled tokens are 1, the others 0."""
    length = len(sampled)
    return Segment([7] * length, sampled, [-0.5 * s for s in sampled], [2 * s - 1 for s in sampled])


def two_turns(member: int, prompt: str = "start", middle: str = "door") -> Trajectory:
    """Two turns in one segment: tokens 1 and 2, and token 4."""
    return Trajectory(
        (3, member),
        "task",
        seed=0,
        prompt=prompt,
        turns=[
            TurnRecord("a", middle, 0.25, 0, 1, 3, "stop"),
            TurnRecord("b", "end", 1.0, 0, 4, 5, "stop"),
        ],
        segments=[segment([0, 1, 1, 0, 1])],
    )


def test_turns_anchors_and_rewards_stand_on_the_tokens_of_their_turn() -> None:
    batch = make_batch([Group(3, "task", [two_turns(0), two_turns(1, middle="start")], 0)])
    assert batch.turns.tolist() == [[-1, 0, 0, -1, 1]] * 2
    assert batch.rewards.tolist() == [[0, 0, 0.25, 0, 1.0]] * 2
    first, second = batch.anchors.tolist()
    assert first == [-1, 0, 0, -1, 1]
    assert second == [-1, 0, 0, -1, 0], "back at the first observation: the same number"
    assert np.isnan(batch.greedy_returns).all()


def test_an_episode_in_several_rows_keeps_its_turns_and_the_greedy_return_of_its_group() -> None:
    split = two_turns(0)
    split.segments = [segment([0, 1, 1]), segment([0, 0, 0, 1])]
    split.turns[1].segment, split.turns[1].start, split.turns[1].end = 1, 3, 4
    batch = make_batch([Group(3, "task", [split, two_turns(1)], 0, greedy_return=0.75)])
    assert batch.episode_ids.tolist() == [0, 0, 1]
    assert batch.turns.tolist() == [[-1, 0, 0, -1, -1], [-1, -1, -1, 1, -1], [-1, 0, 0, -1, 1]]
    assert batch.rewards[:2].tolist() == [[0, 0, 0.25, 0, 0], [0, 0, 0, 1.0, 0]]
    assert batch.returns.tolist() == [1.25] * 3
    assert batch.greedy_returns.tolist() == [0.75] * 3


@pytest.mark.parametrize(("empty", "expected"), [(0, [0, 0, 0, 0, 1.25]), (1, [0, 0, 1.25, 0, 0])])
def test_the_reward_of_a_turn_without_tokens_is_not_lost(empty: int, expected: list[float]) -> None:
    trajectory = two_turns(0)
    turn = trajectory.turns[empty]
    turn.end = turn.start
    assert make_batch([Group(3, "task", [trajectory], 0)]).rewards.tolist() == [expected]


def test_T6_lists_of_unequal_lengths_are_refused() -> None:
    broken = two_turns(0)
    broken.segments[0].loss_mask.pop()
    with pytest.raises(ValueError, match="unequal lengths"):
        make_batch([Group(3, "task", [broken], 0)])
