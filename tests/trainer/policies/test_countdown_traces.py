"""The small policy's demonstrations: right in every step and verdict, imperfect in judgement."""

from __future__ import annotations

import random
import re
from itertools import islice

import pytest

from rollcage.envs.countdown.env import judge
from rollcage.envs.countdown.tasks import generate
from rollcage.trainer.policies.countdown_traces import Demonstrator, Value, demonstrations, find_solution, moves

STEP = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
APPLY = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b}


def check_attempt(line: str, numbers: list[int], target: int) -> bool:
    """Check every step of one line of a message, and its verdict; return the verdict."""
    steps, verdict = line.rsplit(" ", 1)
    held = list(numbers)
    for step in steps.split(", "):
        match = STEP.fullmatch(step)
        assert match, step
        a, b, result = int(match[1]), int(match[3]), int(match[4])
        held.remove(a)
        held.remove(b)
        assert APPLY[match[2]](a, b) == result, step
        held.append(result)
    assert len(held) == 1, "an attempt uses every number"
    assert (verdict == "yes") == (held[0] == target)
    return verdict == "yes"


@pytest.mark.parametrize("num_numbers", [3, 4])
def test_every_step_and_every_verdict_is_right(num_numbers: int) -> None:
    rng = random.Random(0)
    for index in range(300):
        task = generate(num_numbers, num_numbers, "train", index)
        message = Demonstrator().demonstrate(task["numbers"], task["target"], rng)
        thinking, answer = message.split("<answer>")
        lines = thinking.splitlines()
        verdicts = [check_attempt(line, task["numbers"], task["target"]) for line in lines]
        assert len(set(lines)) == len(lines), "no attempt is made twice"
        assert not any(verdicts[:-1]), "a demonstration stops at the first solution"
        outcome, _ = judge("<answer>" + answer, task["numbers"], task["target"])
        assert outcome == ("right" if verdicts[-1] else "wrong_value"), "the answer is the last attempt"


def test_demonstrations_often_give_up_so_that_there_is_much_to_learn() -> None:
    rng, outcomes = random.Random(0), []
    for index in range(1000):
        task = generate(3, 3, "train", index)
        outcomes.append(judge(Demonstrator().demonstrate(**task, rng=rng), **task)[0])
    assert 0.2 < outcomes.count("right") / 1000 < 0.45


def test_insight_and_patience_solve_nearly_every_task() -> None:
    rng, outcomes = random.Random(0), []
    for index in range(200):
        task = generate(3, 3, "train", index)
        outcomes.append(judge(Demonstrator(insight=1.0, give_up=0.0).demonstrate(**task, rng=rng), **task)[0])
    assert outcomes.count("right") > 190


def test_a_search_ends_where_there_is_no_solution() -> None:
    message = Demonstrator(give_up=0.0, max_steps=10).demonstrate([1, 1, 1], 100, random.Random(0))
    assert message.count(" no\n") == 5
    assert message.endswith("</answer>")


def test_find_solution_knows_when_there_is_none() -> None:
    assert find_solution([Value(n, str(n)) for n in (1, 1, 1)], 100, random.Random(0)) is None
    found = find_solution([Value(n, str(n)) for n in (3, 5, 10)], 80, random.Random(0))
    assert found is not None
    assert found.result == 80
    assert judge(f"<answer>{found.expression}</answer>", [3, 5, 10], 80)[0] == "right"


def test_moves_are_mental_arithmetic() -> None:
    def results(a: int, b: int) -> set[tuple[str, int]]:
        return {(operator, result) for _, _, operator, result in moves([Value(a, str(a)), Value(b, str(b))])}

    assert results(3, 12) == {("+", 15), ("-", 9), ("*", 36), ("/", 4)}
    assert results(7, 7) == {("+", 14), ("*", 49), ("/", 1)}, "never zero"
    assert results(98, 97) == {("+", 195), ("-", 1)}, "no huge product, no fraction"


def test_demonstrations_are_reproducible_and_their_seeds_differ() -> None:
    first, again, other = (list(islice(demonstrations(seed), 20)) for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert all(prompt.startswith("Make ") for prompt, _ in first)
    assert {prompt.split(": use")[0].count(",") for prompt, _ in first} == {2, 3}, "three numbers, and some four"
