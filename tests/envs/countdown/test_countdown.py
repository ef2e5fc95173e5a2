"""Countdown as its users meet it: through Gymnasium, with right answers, wrong ones and everything else."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import rollcage  # noqa: F401  (registers the environments)
from rollcage.envs.countdown.env import CountdownEnv, judge
from rollcage.errors import UserError


def make(**kwargs: Any) -> CountdownEnv:
    env = gymnasium.make("rollcage/Countdown-v0", **kwargs)
    assert isinstance(env, CountdownEnv)  # no wrapper stands between
    return env


def test_first_observation_is_the_problem() -> None:
    observation, info = make().reset(options={"numbers": [3, 5, 10], "target": 80})
    assert observation == (
        "Make 80 from the numbers 3, 5, 10: use every number exactly once, with + - * / and parentheses. "
        "Think step by step, then give the expression in <answer> </answer> tags."
    )
    assert info == {"task_id": "custom/3,5,10=80", "success": False, "failure": None, "outcome": None}


def test_a_right_answer_ends_the_episode_with_reward_1() -> None:
    env = make()
    env.reset(options={"numbers": [3, 5, 10], "target": 80})
    step = env.step("3 + 5 is 8, times 10 is 80. <answer>(3+5)*10</answer>")
    info = {"task_id": "custom/3,5,10=80", "success": True, "failure": None, "outcome": "right"}
    assert step == ("Right: the expression is 80.", 1.0, True, False, info)
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("<answer>(3+5)*10</answer>")


def test_gymnasiums_own_checker_finds_nothing() -> None:
    check_env(make())


# Several attempts


def test_a_wrong_attempt_is_told_what_it_was_and_the_last_one_ends_the_episode() -> None:
    env = make(max_attempts=6)
    env.reset(options={"numbers": [3, 5, 10], "target": 80})
    said = []
    for answer in ("3+5*10", "10/(3-5+1)", "8*10", "10/(5-5)*3", "(3+5"):
        observation, reward, terminated, truncated, info = env.step(f"<answer>{answer}</answer>")
        assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
        said.append(observation)
    assert said == [
        "Wrong: the expression is 53, not 80. Attempts left: 5.",
        "Wrong numbers: use each of 3, 5, 10 exactly once, and no other. Attempts left: 4.",
        "Wrong numbers: use each of 3, 5, 10 exactly once, and no other. Attempts left: 3.",
        "Wrong numbers: use each of 3, 5, 10 exactly once, and no other. Attempts left: 2.",
        "Malformed: the answer must be one expression of whole numbers, + - * / and parentheses. Attempts left: 1.",
    ]
    observation, reward, terminated, truncated, info = env.step("I give up.")
    assert observation == "No answer: give an expression in <answer> </answer> tags."
    assert (reward, terminated, truncated, info["outcome"]) == (0.0, True, False, "no_answer")


def test_a_fraction_is_named_exactly() -> None:
    assert judge("<answer>3/(5+10)</answer>", [3, 5, 10], 80) == (
        "wrong_value",
        "Wrong: the expression is 1/5, not 80.",
    )


def test_a_later_attempt_can_be_right() -> None:
    env = make(max_attempts=2)
    env.reset(options={"numbers": [3, 5, 10], "target": 80})
    assert env.step("<answer>3+5+10</answer>")[1:3] == (0.0, False)
    assert env.step("<answer>(3+5)*10</answer>")[1:3] == (1.0, True)
    env.reset(options={"numbers": [3, 5, 10], "target": 80})
    assert env.step("<answer>3+5+10</answer>")[2] is False  # the count starts anew


def test_max_turns_truncates_before_the_attempts_are_used_up() -> None:
    env = make(max_attempts=5, max_turns=2)
    env.reset(seed=0)
    assert env.step("")[2:4] == (False, False)
    assert env.step("")[2:4] == (False, True)


def test_format_reward_is_paid_once_at_the_end_for_a_well_formed_wrong_answer() -> None:
    env = make(format_reward=0.1, max_attempts=2)
    rewards = {}
    for answer in ("3+5+10", "3+5", "(3+5", "(3+5)*10"):
        env.reset(options={"numbers": [3, 5, 10], "target": 80})
        first = env.step(f"<answer>{answer}</answer>")[1]
        rewards[answer] = [first] if first else [first, env.step(f"<answer>{answer}</answer>")[1]]
    assert rewards == {"3+5+10": [0.0, 0.1], "3+5": [0.0, 0.1], "(3+5": [0.0, 0.0], "(3+5)*10": [1.0]}


# Choosing and carrying tasks


def test_a_problem_by_hand_may_have_no_solution() -> None:
    env = make()
    env.reset(options={"numbers": [1, 1], "target": 100})
    with pytest.raises(UserError, match="100 cannot be made from"):
        env.expert()
    assert env.step("<answer>1+1</answer>")[1] == 0.0
    env.reset(options={"numbers": [1] * 7, "target": 100})
    with pytest.raises(UserError, match="up to 6 numbers"):  # to prove that there is none could take minutes
        env.expert()


def test_a_negative_target_by_hand_is_reached_with_a_minus_sign() -> None:
    for numbers, target, answer in (([3, 5], -15, "-(3*5)"), ([3, 5], -2, "3-5 = -2")):
        env = make()
        env.reset(options={"numbers": numbers, "target": target})
        assert env.step(f"<answer>{answer}</answer>")[1] == 1.0


def test_a_task_is_found_again_by_its_id() -> None:
    env = make(split="test")
    first, info = env.reset(seed=8)
    again, same = env.reset(options={"task": info["task_id"]})
    assert info["task_id"].startswith("test/")
    assert (first, info) == (again, same)


def test_seeded_resets_repeat_and_splits_differ() -> None:
    texts = [make(split=split).reset(seed=4)[0] for split in ("train", "train", "validation", "test")]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3


def test_snapshot_restores_the_attempts_and_the_env_pickles() -> None:
    env = make(max_attempts=3)
    env.reset(seed=1)
    env.step("")
    kept = env.snapshot()
    for other in (make(max_attempts=3), pickle.loads(pickle.dumps(env))):
        other.restore(kept)
        assert other.step("")[2] is False
        assert other.step("")[2] is True


# Solver and random policy


@pytest.mark.parametrize("num_numbers", [3, 4, 5, 6, (3, 6)])
def test_the_expert_solves_every_generated_task(num_numbers: int | tuple[int, int]) -> None:
    env = make(num_numbers=num_numbers)
    env.reset(seed=2)
    for _ in range(40):
        assert env.step(env.expert())[1] == 1.0
        env.reset()


def test_random_actions_are_well_formed_and_differ() -> None:
    env = make(num_numbers=4)
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(100):
        env.reset(seed=5)
        action = env.random_action(rng)
        assert env.step(action)[4]["outcome"] in ("right", "wrong_value", "division_by_zero")
        seen.add(action)
    assert len(seen) > 80
