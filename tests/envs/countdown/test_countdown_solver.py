"""The Countdown solver finds a solution where there is one, and only there."""

from __future__ import annotations

import random
import time
from fractions import Fraction

import numpy as np
import pytest

from rollcage.envs.countdown.arithmetic import parse
from rollcage.envs.countdown.env import judge
from rollcage.envs.countdown.solver import random_expression, solve


def reachable(values: list[Fraction]) -> set[Fraction]:
    """Everything that the values can make, the slow and obvious way: combine any two, and go on."""
    if len(values) == 1:
        return set(values)
    found = set()
    for i in range(len(values)):
        for j in range(len(values)):
            if i != j:
                a, b = values[i], values[j]
                rest = [values[k] for k in range(len(values)) if k not in (i, j)]
                for value in [a + b, a - b, a * b] + ([a / b] if b else []):
                    found |= reachable([value, *rest])
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_finds_exactly_what_can_be_made(count: int) -> None:
    rng = random.Random(count)
    for _ in range(4):
        numbers = [rng.randrange(0, 15) for _ in range(count)]
        values = reachable([Fraction(number) for number in numbers])
        for target in range(-5, 60):
            solution = solve(numbers, target)
            assert (solution is not None) == (Fraction(target) in values), (numbers, target)
            if solution is not None:
                assert judge(f"<answer>{solution}</answer>", numbers, target)[0] == "right"


@pytest.mark.parametrize(
    ("numbers", "target"),
    [([3, 3, 8, 8], 24), ([1, 5, 5, 5], 24), ([1, 3, 4, 6], 24), ([0, 5, 7, 9], 0), ([0, 0, 0, 0, 0], 0), ([7], 7),
    ([0, 1, 1, 1, 1, 1], 5)],
)  # fmt: skip
def test_solves_what_needs_fractions_or_zero(numbers: list[int], target: int) -> None:
    assert judge(f"<answer>{solve(numbers, target)}</answer>", numbers, target)[0] == "right"


@pytest.mark.parametrize(("numbers", "target"), [([7], 8), ([1] * 6, 99), ([2] * 6, 97), ([0] * 6, 1)])
def test_says_so_where_there_is_no_solution(numbers: list[int], target: int) -> None:
    assert solve(numbers, target) is None


def test_six_numbers_take_a_moment_even_without_a_solution() -> None:
    start = time.process_time()
    assert solve([97, 89, 83, 79, 73, 71], 999_999) is None
    assert time.process_time() - start < 5.0  # measured: 0.5 s


def test_random_expressions_use_every_number_once() -> None:
    rng = np.random.default_rng(1)
    for count in range(1, 7):
        numbers = [int(number) for number in rng.integers(1, 100, count)]
        expression = parse(random_expression(numbers, rng))
        assert expression is not None
        assert sorted(expression.numbers) == sorted(numbers)
