"""The record of an episode: whole, strict JSON, and readable again."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rollcage.envs.placements.base import EnvConfig
from rollcage.errors import UserError
from rollcage.trainer.rollout.record import dump_line, trajectory_from_json, trajectory_to_json
from rollcage.trainer.types import Failure, Segment, Trajectory, TurnRecord

ENV = EnvConfig("rollcage/Countdown-v0", {"num_numbers": 4, "split": "test"})


def trajectory(**changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "sample_id": (12, 3),
        "task_id": "test/7",
        "seed": 2**63 - 1,
        "prompt": "Say \ud800 and \x00 and Ω.",
        "turns": [TurnRecord("a", "b", 0.1, 0, 2, 4, "stop"), TurnRecord("c", "d", 1 / 3, 0, 6, 7, "length")],
        "segments": [Segment([1, 2, 3, 4], [0, 0, 1, 1], [0.0, 0.0, -0.25, -1.5], [-1, -1, 5, 6])],
        "success": True,
        "terminated": True,
        "start_version": 5,
        "end_version": 6,
        "start_s": 1.25,
        "end_s": 2.5,
        "info": {"outcome": "right"},
        **changes,
    }
    return Trajectory(**fields)


@pytest.mark.parametrize("failure", [None, Failure("infra", "env_died", "gone")])
def test_a_record_comes_back_whole(failure: Failure | None) -> None:
    original = trajectory(failure=failure)
    line = dump_line(trajectory_to_json(original, ENV, "expert", tokens=True, attempt=3))
    assert line.endswith("\n")
    assert line.isascii()
    assert line.count("\n") == 1
    record = json.loads(line)
    assert trajectory_from_json(record) == (original, ENV)
    assert (record["id"], record["policy"], record["attempt"]) == ("12.3", "expert", 3)
    assert record["options"] == {"task": "test/7"}
    assert record["return"] == original.return_


def test_token_ids_are_left_out_unless_asked_for() -> None:
    record = trajectory_to_json(trajectory(), ENV, "expert")
    assert "segments" not in record
    assert trajectory_from_json(record)[0].segments == []


def test_whatever_an_info_holds_becomes_strict_json() -> None:
    info = {"array": np.arange(3), "scalar": np.float32(0.5), "nan": float("nan"), "set": {2, 1}, 1: object, "t": (1,)}
    line = dump_line(trajectory_to_json(trajectory(info=info), ENV, "expert"))
    expected = {"array": [0, 1, 2], "scalar": 0.5, "nan": None, "set": [1, 2], "1": repr(object), "t": [1]}
    assert json.loads(line)["info"] == expected


def test_a_record_of_another_writer_needs_only_the_environment_and_the_actions() -> None:
    restored, env = trajectory_from_json({"env_id": "x/Y-v0", "turns": [{"action": "left", "comment": "?"}]})
    assert (env, restored.turns[0].action) == (EnvConfig("x/Y-v0"), "left")


@pytest.mark.parametrize(
    "record",
    [{}, {"env_id": "x"}, {"env_id": "x", "turns": [{}]}, {"env_id": "x", "turns": 3}, {"env_id": "x", "turns": [1]}],
)
def test_what_is_no_record_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="not the record of an episode"):
        trajectory_from_json(record)


def test_a_record_of_a_newer_format_is_refused() -> None:
    with pytest.raises(UserError, match="format 2, newer"):
        trajectory_from_json({"format": 2, "env_id": "x", "turns": []})
