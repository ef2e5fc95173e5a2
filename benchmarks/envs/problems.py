"""The problems that everyone is measured on: real rows, half of the answers right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rollcage.envs.countdown.arithmetic import evaluate, parse
from rollcage.envs.countdown.solver import solve
from rollcage.envs.countdown.tasks import file_tasks, generated_tasks, published_files
from rollcage.errors import RollcageError, UserError


class Problem(NamedTuple):
    """One row and the answer that is given to it.

    Attributes:
        numbers: the numbers.
        target: the target.
        answer: an expression that uses the numbers; worth the target where ``right``.
        right: whether the answer is right.
    """

    numbers: list[int]
    target: int
    answer: str
    right: bool


def find_rows() -> Path | None:
    """Return the file of real rows, where one of the usual places holds it."""
    try:
        return Path(published_files()["test"])
    except (UserError, KeyError):
        return None


def load_problems(rows: Path | None, num_problems: int) -> list[Problem]:
    """Return the first problems of ``rows``, or of the procedural test split; every second answer is wrong.

    Wrong answers are near misses: one operator of a right answer is another one.

    Raises:
        RollcageError: a row has no solution.
    """
    tasks = generated_tasks((3, 4)) if rows is None else file_tasks(rows, "test")
    problems = []
    for index in range(min(num_problems, tasks.splits["test"])):
        data = tasks.task("test", index).data
        numbers, target = data["numbers"], data["target"]
        answer = data.get("solution") or solve(numbers, target)
        if answer is None:
            raise RollcageError(f"row {index} of {rows} has no solution: {target} from {numbers}.")
        right = index % 2 == 0
        problems.append(Problem(numbers, target, answer if right else near_miss(answer, target), right))
    return problems


def near_miss(answer: str, target: int) -> str:
    """Return ``answer`` with one operator changed so that it is well-formed, has a value, and misses the target."""
    for place, operator in enumerate(answer):
        for other in "+-*/" if operator in "+-*/" else "":
            changed = answer[:place] + other + answer[place + 1 :]
            expression = parse(changed)
            value = evaluate(expression) if expression else None
            if value is not None and value[0] != target * value[1]:
                return changed
    raise RollcageError(f"no operator of {answer!r} can be changed.")


def write_rows(problems: Sequence[Problem], file: Path) -> None:
    """Write the problems as a data file whose row i is problem i."""
    file.write_text(
        "".join(f'{{"target": {problem.target}, "nums": {problem.numbers}}}\n' for problem in problems),
        encoding="utf-8",
    )
