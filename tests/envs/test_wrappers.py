"""Wrappers of text environments, and the recording that `rollcage replay` plays again."""

from __future__ import annotations

import json
import math
import multiprocessing
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

sys.path.insert(0, str(Path(__file__).parent / "zoo"))
import placement_zoo

from rollcage.__main__ import main
from rollcage.envs.recording import Recording, append_line
from rollcage.envs.wrappers import EpisodeStatistics, History, TurnLimit
from rollcage.errors import UserError

Wrap = Callable[[gymnasium.Env[str, str]], gymnasium.Env[str, str]]


def moody(**kwargs: Any) -> gymnasium.Env[str, str]:
    return gymnasium.make("zoo/Moody-v0", **kwargs)


def play(env: gymnasium.Env[str, str], actions: list[str], **reset: Any) -> list[Any]:
    return [env.reset(**reset), *(env.step(action) for action in actions)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_turn_limit_tells_how_many_turns_are_left_and_truncates() -> None:
    env = TurnLimit(moody(), max_turns=3)
    (first, _), second, third, last = play(env, ["x", "y", "z"], options={"task": "train/0"})
    assert first == "Say ada.\n(3 turns left)"
    assert (second[0], second[3]) == ("x\n(2 turns left)", False)
    assert (third[0], third[3]) == ("y\n(1 turn left)", False)
    assert (last[0], last[2:4]) == ("z", (False, True))
    solved = play(env, ["x", "y", "ada"], options={"task": "train/0"})[-1]
    assert solved[2:4] == (True, False)  # solved on the last turn is terminated, not truncated
    with pytest.raises(UserError, match="at least 1"):
        TurnLimit(moody(), max_turns=0)


def test_history_shows_the_whole_conversation_or_the_last_turns() -> None:
    env = History(moody())
    last = play(env, ["x", "y"], options={"task": "train/0"})[-1]
    assert last[0] == "User: Say ada.\n\nAssistant: x\n\nUser: x\n\nAssistant: y\n\nUser: y"
    short = History(moody(), last_turns=1)
    last = play(short, ["x", "y"], options={"task": "train/0"})[-1]
    assert last[0] == "User: Say ada.\n\nAssistant: y\n\nUser: y"
    assert short.messages[1] == {"role": "assistant", "content": "y"}
    assert short.reset(options={"task": "train/1"})[0] == "User: Say bell."
    with pytest.raises(UserError, match="at least 1"):
        History(moody(), last_turns=0)


class Failing(gymnasium.Wrapper[str, str, str, str]):
    """Reports an infrastructure failure when told so."""

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if action == "fail":
            return "", 0.0, False, True, {**info, "failure": "infra"}
        return observation, reward, terminated, truncated, info


def test_episode_statistics_leave_failures_out_of_the_success_rate() -> None:
    env = EpisodeStatistics(Failing(moody(max_turns=2)))
    assert (env.success_rate, env.mean_return) == (None, None)
    episodes = (["x", "ada"], ["fail"], ["x", "y"], ["ada"], ["x"])
    infos = [play(env, actions, options={"task": "train/0"})[-1][4] for actions in episodes]
    assert (env.num_scored, env.num_failed) == (3, 1)  # the last was not played to its end
    assert env.success_rate == env.mean_return == 2 / 3
    statistics = infos[0]["episode"]
    assert {key: statistics[key] for key in ("return_", "length", "success")} == {
        "return_": 1.0,
        "length": 2,
        "success": True,
    }
    assert 0 <= statistics["duration_s"] < 60
    assert "episode" not in infos[-1]
    newest = EpisodeStatistics(moody(max_turns=1), window=1)
    for action in ("x", "ada"):
        play(newest, [action], options={"task": "train/0"})
    assert newest.success_rate == 1.0


WRAPPERS: dict[str, Wrap] = {
    "turn-limit": lambda env: TurnLimit(env, max_turns=4),
    "history": lambda env: History(env, last_turns=2),
    "statistics": lambda env: EpisodeStatistics(env, window=3),
    "all": lambda env: EpisodeStatistics(History(TurnLimit(env, max_turns=4))),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=list(WRAPPERS))
def test_wrappers_keep_spec_pickle_and_snapshot(wrap: Wrap) -> None:
    env = wrap(moody())
    play(env, ["x"], seed=3)
    assert env.spec is not None
    again = gymnasium.make(env.spec)
    assert str(again) == str(env)
    twin = pickle.loads(pickle.dumps(env))
    snapshot = env.get_wrapper_attr("snapshot")()
    rest = [env.step(action)[:4] for action in ("y", "z")]
    assert [twin.step(action)[:4] for action in ("y", "z")] == rest
    for other in (env, again):
        other.reset(seed=0)
        other.get_wrapper_attr("restore")(snapshot)
        assert [other.step(action)[:4] for action in ("y", "z")] == rest


def test_recording_writes_each_episode_as_one_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "episodes.jsonl"
    env = Recording(moody(max_turns=2), path)
    recorded, bare = (play(e, ["x", "ada"], seed=5, options={"task": "train/0"}) for e in (env, moody(max_turns=2)))
    assert [step[:4] for step in recorded[1:]] == [step[:4] for step in bare[1:]]  # recording changes nothing
    play(env, ["\ud800 lone\x00", "z"])
    env.reset(seed=1)  # not played to its end: not written
    first, second = lines(path)
    assert {key: first[key] for key in ("format", "id", "env_id", "env_kwargs", "seed", "options", "task_id")} == {
        "format": 1,
        "id": "0",
        "env_id": "zoo/Moody-v0",
        "env_kwargs": {"max_turns": 2},
        "seed": 5,
        "options": {"task": "train/0"},
        "task_id": "train/0",
    }
    assert (first["prompt"], [turn["action"] for turn in first["turns"]]) == ("Say ada.", ["x", "ada"])
    assert [turn["reward"] for turn in first["turns"]] == [0.0, 1.0]
    assert (first["return"], first["success"], first["terminated"], first["truncated"]) == (1.0, True, True, False)
    assert first["info"]["success"] is True
    assert (second["turns"][0]["observation"], second["truncated"]) == ("\ud800 lone\x00", True)
    assert isinstance(second["seed"], int)  # drawn, so that the episode can be played again


def test_an_environment_that_raises_is_recorded_as_a_failure(tmp_path: Path) -> None:
    env = Recording(moody(), tmp_path / "episodes.jsonl")
    env.reset(seed=0)
    env.step("x")
    with pytest.raises(RuntimeError, match="oh no"):
        env.step("raise oh no")
    (record,) = lines(tmp_path / "episodes.jsonl")
    assert record["failure"]["kind"] == "infra"
    assert "oh no" in record["failure"]["message"]
    assert len(record["turns"]) == 1


def test_rollcage_replay_plays_a_recording_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "episodes.jsonl"
    env = Recording(gymnasium.make("rollcage/FrozenLake-v0"), path)
    for seed in (0, None):
        env.reset(seed=seed)
        ended = False
        while not ended:
            ended = any(env.step(env.unwrapped.expert())[2:4])  # type: ignore[attr-defined]
    assert main(["replay", str(path)]) == 0
    assert "2 identical" in capsys.readouterr().out
    changed = path.read_text().replace('"seed": 0', '"seed": 1')
    path.write_text(changed)
    assert main(["replay", str(path)]) == 1


def _append(path: Path, letter: str) -> None:
    for _ in range(50):
        append_line(path, json.dumps({"format": 1, "text": letter * 20_000}))


def test_lines_of_several_writers_stay_whole(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append, args=(path, letter)) for letter in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    texts = [record["text"] for record in lines(path)]
    assert sorted(set(texts)) == ["a" * 20_000, "b" * 20_000]
    assert len(texts) == 100


def test_a_line_that_a_killed_writer_left_is_cut_off_and_other_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    whole = '{"format": 1, "n": 1}\n'
    for torn in ('{"format": 1, "te', '{"format": 1, "' + "x" * 200_000, '{"fo'):
        path.write_text(whole + torn)
        append_line(path, '{"format": 1, "n": 2}')
        assert [record["n"] for record in lines(path)] == [1, 2]
    path.write_text('{"fo')
    append_line(path, '{"format": 1, "n": 2}')
    assert [record["n"] for record in lines(path)] == [2]
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    with pytest.raises(UserError, match="not a recording"):
        append_line(notes, "{}")
    assert notes.read_text() == "mine"
    with pytest.raises(UserError, match="cannot be written"):
        append_line(tmp_path / "notes.txt" / "x.jsonl", "{}")


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    path = tmp_path / "episodes.jsonl"
    append_line(path, '{"format": 1}')
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) <= 10:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: math.ceil(len(data) / 2)])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UserError, match="No space left"):
        append_line(path, '{"format": 1, "n": 2}')
    monkeypatch.undo()
    assert path.read_text() == '{"format": 1}\n'


def test_recording_needs_an_environment_that_can_be_made_again(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must wrap what gymnasium.make returned"):
        Recording(TurnLimit(moody(), max_turns=2), tmp_path / "x")
    with pytest.raises(UserError, match=r"must wrap what gymnasium.make returned"):
        Recording(placement_zoo.MoodyEnv(), tmp_path / "x")
    limited = Recording(moody(max_episode_steps=1), tmp_path / "episodes.jsonl")
    play(limited, ["x"], seed=0)
    assert lines(tmp_path / "episodes.jsonl")[0]["env_kwargs"] == {"max_episode_steps": 1}
    outer = TurnLimit(limited, max_turns=2)
    assert pickle.loads(pickle.dumps(outer)).reset(seed=0) == outer.reset(seed=0)
