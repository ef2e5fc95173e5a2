"""Procedural Countdown tasks: solvable, stable, with splits that share no problem."""

from __future__ import annotations

import hashlib
import json
import time

import pytest

from rollcage.envs.countdown.solver import solve
from rollcage.envs.countdown.tasks import SPLIT_SIZES, generate, generated_tasks, split_of

RANGES = [(3, 3), (4, 4), (5, 5), (6, 6), (3, 6)]
PINNED = [
    {"numbers": [21, 39, 21], "target": 39},
    {"numbers": [40, 69, 98], "target": 11},
    {"numbers": [55, 45, 87], "target": 97},
]
PINNED_SHA256 = "e2dcd08a65c105fa52defd01d9cfb6a42d1cfcb0df74ea909376e988491c0609"


def problem(task: dict[str, object]) -> tuple[tuple[int, ...], int]:
    return tuple(sorted(task["numbers"])), task["target"]  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_tasks_keep_their_promises(low: int, high: int) -> None:
    counts = set()
    for split in SPLIT_SIZES:
        for index in range(150):
            task = generate(low, high, split, index)
            numbers, target = task["numbers"], task["target"]
            counts.add(len(numbers))
            assert all(type(number) is int and 1 <= number <= 99 for number in numbers)
            assert type(target) is int
            assert 10 <= target <= 100
            assert split_of(numbers, target) == split
    assert counts == set(range(low, high + 1))


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_every_task_has_a_solution(low: int, high: int) -> None:
    for index in range(60):
        task = generate(low, high, "train", index)
        assert solve(task["numbers"], task["target"]) is not None, task


def test_tasks_never_change() -> None:
    """The same on every platform and version: a changed generator needs a new version of the environment."""
    assert generate(3, 3, "train", 0) == PINNED[0]
    assert generate(3, 3, "test", 9_999) == PINNED[1]
    assert generate(3, 6, "validation", 77) == PINNED[2]
    sample = [
        generate(low, high, split, index) for low, high in RANGES for split in SPLIT_SIZES for index in range(100)
    ]
    assert hashlib.sha256(json.dumps(sample).encode()).hexdigest() == PINNED_SHA256


def test_splits_share_no_problem_whatever_the_number_of_numbers() -> None:
    problems = {
        split: {problem(generate(low, high, split, index)) for low, high in RANGES[:2] for index in range(4000)}
        for split in SPLIT_SIZES
    }
    assert not problems["train"] & problems["test"]
    assert not problems["train"] & problems["validation"]
    assert not problems["validation"] & problems["test"]


def test_the_same_problem_in_another_order_is_the_same_problem() -> None:
    assert len({split_of(numbers, 80) for numbers in ([3, 5, 10], [10, 5, 3], (5, 10, 3))}) == 1


def test_tasks_are_many_and_of_many_kinds() -> None:
    tasks = [generate(3, 3, "train", index) for index in range(2000)]
    assert len({problem(task) for task in tasks}) > 1950
    assert len({task["target"] for task in tasks}) == 91  # every target from 10 to 100
    only_sums = sum(_sums_reach(task["numbers"], task["target"]) for task in tasks) / len(tasks)
    assert 0.6 < only_sums < 0.9  # the rest needs a product or a quotient


def _sums_reach(numbers: list[int], target: int) -> bool:
    a, b, c = numbers
    return target in {i * a + j * b + k * c for i in (1, -1) for j in (1, -1) for k in (1, -1)}


def test_generation_is_fast() -> None:
    start = time.process_time()
    for index in range(5000):
        generate(3, 3, "train", index)
    assert 5000 / (time.process_time() - start) > 20_000  # measured: 88,000


def test_task_sets_name_what_they_hold() -> None:
    tasks = generated_tasks((3, 4))
    assert (tasks.name, generated_tasks(3).name) == ("countdown-3to4", "countdown-3")
    assert tasks.splits == {"train": 10_000_000, "validation": 10_000, "test": 10_000}
    assert tasks.task("test", 5) == tasks.by_id("test/5")
