"""Countdown from data files, and the errors of bad files, arguments and options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import pytest

import rollcage  # noqa: F401  (registers the environments)
from rollcage.envs.countdown.env import CountdownEnv
from rollcage.errors import UserError


def make(**kwargs: Any) -> CountdownEnv:
    env = gymnasium.make("rollcage/Countdown-v0", **kwargs)
    assert isinstance(env, CountdownEnv)  # no wrapper stands between
    return env


@pytest.mark.parametrize(
    "options",
    [
        {"numbers": [3, 5]}, {"target": 8}, {"numbers": [], "target": 8}, {"numbers": "35", "target": 8},
        {"numbers": 35, "target": 8},
        {"numbers": [3, 5.0], "target": 8}, {"numbers": [3, True], "target": 8}, {"numbers": [3, -5], "target": 8},
        {"numbers": [3, "5"], "target": 8}, {"numbers": [3, 5], "target": 8.0}, {"numbers": [3, 5], "target": "8"},
        {"numbers": [3, 5], "target": None}, {"numbers": [1] * 9, "target": 8}, {"numbers": [3, 10**6], "target": 8},
        {"numbers": [3, 5], "target": 10**9}, {"numbers": [3, 5], "target": float("nan")},
        {"numbers": [3, 5], "target": 8, "task": "train/0"}, {"nums": [3, 5], "target": 8},
        {"task": "train/10000000"}, {"task": "trian/0"},
    ],
    ids=str,
)  # fmt: skip
def test_bad_reset_options_get_one_clear_line(options: dict[str, Any]) -> None:
    env = make()
    with pytest.raises(UserError) as error:
        env.reset(options=options)
    assert "\n" not in str(error.value)


ROWS = '{"target": 98, "nums": [44, 19, 35]}\n\n{"target": 64, "numbers": [63, 95, 96], "solution": "96+(63-95)"}\n'


def test_one_file_becomes_the_split_that_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text(ROWS)
    env = make(data=file, split="test")
    assert env.tasks.splits == {"test": 2}
    observation, _ = env.reset(options={"task": "test/problems-1"})
    assert observation.startswith("Make 64 from the numbers 63, 95, 96: ")
    assert env.step(env.expert())[1] == 1.0


def test_files_by_split(tmp_path: Path) -> None:
    for name in ("a.jsonl", "countdown_3to4_train.jsonl", "countdown_3to4_test.jsonl"):
        (tmp_path / name).write_text(ROWS)
    files = {"train": tmp_path / "a.jsonl", "eval": tmp_path / "a.jsonl"}
    assert make(data=files).tasks.splits == {"train": 2, "eval": 2}
    (tmp_path / "a.jsonl").unlink()
    assert make(data=str(tmp_path)).tasks.splits == {"test": 2, "train": 2}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"target": 98}', "expected the fields 'target' and 'numbers' or 'nums'"),
        ('{"nums": [1, 2]}', "expected the fields 'target' and 'numbers' or 'nums'"),
        ("{}", "found: none"),
        ('{"target": 98, "nums": []}', "list of 1 to 8 integers"),
        ('{"target": 98, "nums": "44 19"}', "list of 1 to 8 integers"),
        ('{"target": 98, "nums": [44, 19.5]}', "integers from 0 to 999999"),
        ('{"target": 98, "nums": [44, null]}', "integers from 0 to 999999"),
        ('{"target": 98.5, "nums": [44, 19]}', "the target must be an integer"),
        ('{"target": NaN, "nums": [44, 19]}', "the target must be an integer"),
        ('{"target": true, "nums": [44, 19]}', "the target must be an integer"),
        ('{"target": 98, "nums": [44, 19]', "not valid JSON"),
        ("[98, [44, 19]]", "expected a JSON object"),
    ],
)
def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path, line: str, complaint: str) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text(ROWS + line + "\n")
    with pytest.raises(UserError) as error:
        make(data=file)
    assert str(error.value).startswith(f"{file}:4: ")
    assert complaint in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_or_an_unknown_split_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        make(data=tmp_path / "absent.jsonl")
    with pytest.raises(UserError, match="holds no data file"):
        make(data=tmp_path)
    (tmp_path / "x_test.jsonl").write_text(ROWS)
    with pytest.raises(UserError, match="has no split 'train'"):
        make(data=tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [{"num_numbers": 2}, {"num_numbers": 7}, {"num_numbers": (5, 3)}, {"num_numbers": (3, 4, 5)},
    {"num_numbers": 3.5}, {"max_attempts": 0},
     {"format_reward": 1.0}, {"format_reward": -0.1}, {"format_reward": float("nan")}, {"split": "tset"}],
)  # fmt: skip
def test_bad_arguments_get_one_clear_line(arguments: dict[str, Any]) -> None:
    with pytest.raises(UserError) as error:
        make(**arguments)
    assert "\n" not in str(error.value)


def test_published_rows_are_solved_and_scored(shared_data: Path | None, tmp_path: Path) -> None:
    """The real rows where they are at hand, else rows of our own: a right answer to each, and a wrong one."""
    if shared_data is None:
        folder = tmp_path
        (folder / "countdown_test.jsonl").write_text(ROWS)
    else:
        folder = shared_data / "countdown"
    env = make(data=folder, split="test")
    for index in range(min(300, env.tasks.splits["test"])):
        task = {"task": env.tasks.task("test", index).id}
        env.reset(options=task)
        assert env.step(env.expert())[1] == 1.0
        env.reset(options=task)
        if solution := env.task.data.get("solution"):
            assert env.step(f"<answer>{solution}</answer>")[1] == 1.0
            env.reset(options=task)
        wrong = "+".join(map(str, env.task.data["numbers"]))
        if sum(env.task.data["numbers"]) != env.task.data["target"]:
            assert env.step(f"<answer>{wrong}</answer>")[4]["outcome"] == "wrong_value"
