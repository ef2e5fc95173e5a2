"""Replay: the first difference, wherever it stands."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rollcage.envs.recording import Recording
from rollcage.errors import UserError
from rollcage.monitor.run_folder import RunFolder
from rollcage.monitor.store.limits import StoreConfig
from rollcage.trainer.replay import Difference, read_records, replay_all


@pytest.fixture
def record() -> dict[str, Any]:
    """An episode with a problem set by hand, two attempts: wrong, then right."""
    options = {"numbers": [3, 5, 10], "target": 80}
    env = gymnasium.make("rollcage/Countdown-v0", max_attempts=2)
    prompt, info = env.reset(seed=1, options=options)
    turns = []
    for action in ("<answer>3*5+10</answer>", "<answer>(3+5)*10</answer>"):
        observation, reward, terminated, truncated, last = env.step(action)
        turns.append({"action": action, "observation": observation, "reward": reward})
    env.close()
    return {
        "env_id": "rollcage/Countdown-v0",
        "env_kwargs": {"max_attempts": 2},
        "id": "4.1",
        "task_id": info["task_id"],
        "seed": 1,
        "options": options,
        "prompt": prompt,
        "turns": turns,
        "success": last["success"],
        "terminated": terminated,
        "truncated": truncated,
    }


def first_difference(record: dict[str, Any], tmp_path: Path) -> Difference | None:
    file = tmp_path / "episodes.jsonl"
    file.write_text(json.dumps(record) + "\n")
    [(name, difference)] = asyncio.run(replay_all(file, None, "inline"))
    assert name == f"{record['id']} {record['task_id']}"
    return difference


def test_a_problem_set_by_hand_replays_from_its_reset_options(record: dict[str, Any], tmp_path: Path) -> None:
    assert first_difference(record, tmp_path) is None


@pytest.mark.parametrize(
    ("change", "turn", "field"),
    [
        ({"task_id": "custom/other"}, -1, "task_id"),
        ({"prompt": "Make 81."}, -1, "observation"),
        ({"options": {"numbers": [3, 5, 10], "target": 81}}, -1, "task_id"),
        ({"options": {"colour": 3}}, -1, "error"),
        ({"success": False}, 1, "success"),
        ({"terminated": False}, 1, "terminated"),
        ({"truncated": True}, 1, "truncated"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_first_difference_is_found(
    record: dict[str, Any], change: dict[str, Any], turn: int, field: str, tmp_path: Path
) -> None:
    difference = first_difference(record | change, tmp_path)
    assert difference is not None
    assert (difference.turn, difference.field) == (turn, field)


def test_differences_within_turns_name_the_turn_and_both_values(record: dict[str, Any], tmp_path: Path) -> None:
    first, second = record["turns"]
    difference = first_difference(record | {"turns": [first | {"reward": 0.25}, second | {"reward": 7.0}]}, tmp_path)
    assert str(difference) == "turn 0: reward: recorded 0.25, replayed 0.0"
    difference = first_difference(record | {"turns": [first | {"observation": "Wrong."}, second]}, tmp_path)
    assert difference is not None
    assert str(difference).startswith("turn 0, character ")
    assert "recorded 'Wrong.', replayed " in str(difference)


def test_an_episode_that_ends_earlier_than_recorded_is_a_difference(record: dict[str, Any], tmp_path: Path) -> None:
    longer = record | {"turns": [*record["turns"], record["turns"][0]]}
    difference = first_difference(longer, tmp_path)
    assert difference == Difference(2, "the episode", "went on", "was over")


def test_an_episode_that_failed_half_way_is_compared_as_far_as_it_went(record: dict[str, Any], tmp_path: Path) -> None:
    failure = {"kind": "infra", "reason": "endpoint_timeout", "message": ""}
    half = record | {"turns": record["turns"][:1], "terminated": False, "success": False, "failure": failure}
    assert first_difference(half, tmp_path) is None
    never_began = half | {"prompt": "", "turns": []}
    assert first_difference(never_began, tmp_path) is None


def test_what_the_recording_wrapper_wrote_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    env = Recording(gymnasium.make("rollcage/FrozenLake-v0", split="test"), path)
    for seed in (3, None, 5):
        env.reset(seed=seed)
        over = False
        while not over:
            _, _, terminated, truncated, _ = env.step(env.unwrapped.random_action(np.random.default_rng(0)))
            over = terminated or truncated
    env.close()
    results = asyncio.run(replay_all(path, None, "inline"))
    assert [difference for _, difference in results] == [None, None, None]


def test_an_unfinished_last_line_is_left_out(record: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "trajectories.jsonl"
    file.write_text(json.dumps(record) + "\n" + json.dumps(record)[:50])
    assert len(list(read_records(tmp_path))) == 1


def test_the_closed_segments_of_a_long_run_are_read_too(record: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    run = RunFolder(tmp_path, StoreConfig(segment_mib=0.01))
    for number in range(200):
        run.trajectory(record | {"id": f"{number}.0"})
    run.close()
    assert list(tmp_path.glob("trajectories-*.jsonl.gz"))
    for source in (tmp_path, tmp_path / "trajectories.jsonl"):
        assert [found["id"] for _, found in read_records(source)] == [f"{number}.0" for number in range(200)]


def test_an_id_that_is_not_there_is_named(record: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    file.write_text(json.dumps(record) + "\n")
    with pytest.raises(UserError, match=r"no episode with the id or task id '9\.9'"):
        asyncio.run(replay_all(file, "9.9", "inline"))
