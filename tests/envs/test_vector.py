"""The vector environment: what `SyncVectorEnv` returns, faster, and with environments that may fail."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

sys.path.insert(0, str(Path(__file__).parent / "zoo"))
import placement_zoo

from rollcage.envs import UnicodeText, vector
from rollcage.envs.vector import TextVectorEnv, make_vector_env
from rollcage.errors import UserError

PLACEMENTS = ("inline", "process")
IDS = ("rollcage/Countdown-v0", "rollcage/FrozenLake-v0", "zoo/Moody-v0")
WORDS = ("ada", "bell", "curie", "<answer>1+1</answer>", "right", "", "\ud800\x00")


@pytest.fixture(params=PLACEMENTS)
def placement(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def moody(placement: str) -> Iterator[TextVectorEnv]:
    env = gymnasium.make_vec("zoo/Moody-v0", num_envs=3, placement=placement, deadline_s=20.0)
    assert isinstance(env, TextVectorEnv)
    yield env
    env.close()
    env.close()  # twice


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal values, types, dtypes and shapes, all the way down."""
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, tuple):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            assert_same(our, their)
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tolist() == theirs.tolist()
    else:
        assert type(ours) is type(theirs)
        assert ours == theirs


@pytest.mark.parametrize("env_id", IDS)
def test_equals_sync_vector_env_on_the_same_seeds(env_id: str) -> None:
    ours = gymnasium.make_vec(env_id, num_envs=3)
    theirs = gymnasium.make_vec(env_id, num_envs=3, vectorization_mode="sync")
    assert isinstance(theirs, SyncVectorEnv)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    rng = np.random.default_rng(0)
    for seed, options in ((5, None), ([1, None, 2], {}), (None, {"reset_mask": np.array([True, False, True])})):
        copies = [copy.deepcopy(options) for _ in range(2)]
        # A seed of None draws one from the operating system: only the generators that are already seeded agree.
        if seed == [1, None, 2]:
            ours.reset(seed=9), theirs.reset(seed=9)
        assert_same(ours.reset(seed=seed, options=copies[0]), theirs.reset(seed=seed, options=copies[1]))
        for _ in range(8):
            actions = tuple(str(word) for word in rng.choice(WORDS, 3))
            assert_same(ours.step(actions), theirs.step(actions))
    assert_same(ours.get_attr("num_turns"), theirs.get_attr("num_turns"))
    assert_same(ours.call("expert"), theirs.call("expert"))
    assert_same(ours.metadata["autoreset_mode"], AutoresetMode.NEXT_STEP)
    ours.close(), theirs.close()


@pytest.mark.parametrize("env_id", IDS)
def test_a_process_each_gives_the_same_as_inline(env_id: str) -> None:
    inline, process = (gymnasium.make_vec(env_id, num_envs=2, placement=kind, max_turns=3) for kind in PLACEMENTS)
    assert inline.observation_space == process.observation_space
    assert inline.metadata == process.metadata
    rng = np.random.default_rng(0)
    for options in (None, [{"task": inline.call("task")[0].id} if inline.call("task")[0].id else {}, {}]):
        results = [env.reset(seed=5, options=options) for env in (inline, process)]
        assert results[0][0] == results[1][0]
        for _ in range(9):
            actions = [str(word) for word in rng.choice(WORDS, 2)]
            first, second = (env.step(actions) for env in (inline, process))
            assert first[0] == second[0]
            for ours, theirs in zip(first[1:4], second[1:4], strict=True):
                assert_same(ours, theirs)
            assert list(first[4]) == list(second[4])
    inline.close(), process.close()


def test_case_e14_make_vec_works_with_plain_arguments_and_text_arrives_whole() -> None:
    env = gymnasium.make_vec("rollcage/Countdown-v0", num_envs=4)
    observations, infos = env.reset(seed=0)
    assert [len(text) > 20 for text in observations] == [True] * 4
    assert env.observation_space.contains(observations)
    observations, rewards, terminations, truncations, infos = env.step(["<answer>1</answer>"] * 4)
    assert isinstance(observations, tuple)
    assert (rewards.dtype, terminations.dtype, truncations.dtype) == (np.float64, np.bool_, np.bool_)
    assert infos["success"].tolist() == [False] * 4
    assert infos["_success"].tolist() == [True] * 4
    assert env.spec is not None
    assert env.spec.id == "rollcage/Countdown-v0"
    again = gymnasium.make_vec(env.spec)  # the spec makes the same again
    assert again.num_envs == 4
    assert again.reset(seed=3)[0] == env.reset(seed=3)[0]
    env.close(), again.close()


def test_spaces(moody: TextVectorEnv) -> None:
    assert moody.single_observation_space == UnicodeText()
    assert moody.action_space.sample() in moody.action_space
    assert len(moody.observation_space.sample()) == 3


def test_autoreset_happens_on_the_next_step_and_ignores_the_action(moody: TextVectorEnv) -> None:
    moody.reset(seed=1, options=[{"task": f"train/{i}"} for i in range(3)])
    observations, rewards, terminations, _, infos = moody.step(["ada", "x", "y"])
    assert (rewards.tolist(), terminations.tolist()) == ([1.0, 0.0, 0.0], [True, False, False])
    assert infos["task_id"].tolist() == ["train/0", "train/1", "train/2"]
    observations, rewards, terminations, _, infos = moody.step(["raise ignored", "x", "y"])
    assert observations[0].startswith("Say ")
    assert (rewards.tolist(), terminations.tolist()) == ([0.0] * 3, [False] * 3)
    assert moody.get_attr("num_turns") == (0, 2, 2)
    assert infos["draw"].tolist()[0] == 0
    assert infos["_draw"].tolist() == [False, True, True]  # a reset's info has fewer keys


def test_seeds_options_and_reset_mask(moody: TextVectorEnv) -> None:
    with pytest.raises(gymnasium.error.ResetNeeded):
        moody.step(["a"] * 3)
    by_int = moody.reset(seed=4)[0]
    assert moody.reset(seed=[4, 5, 6])[0] == by_int
    assert moody.reset(seed=np.int64(4))[0] == by_int
    task = {"task": "train/2"}
    assert moody.reset(seed=4, options=task)[0] == ("Say curie.",) * 3
    options = {"reset_mask": np.array([False, True, False]), **task}
    moody.reset(seed=[4, 5, 6], options=[{"task": "train/0"}, {"task": "train/1"}, None])
    moody.step(["x"] * 3)
    observations, infos = moody.reset(options=options)
    assert observations[:2] == ("x", "Say curie.")
    assert infos["_task_id"].tolist() == [False, True, False]
    assert "reset_mask" in options  # the caller's, not ours to change
    assert moody.get_attr("num_turns") == (1, 0, 1)
    with pytest.raises(ValueError, match="one seed for each"):
        moody.reset(seed=[1, 2])
    with pytest.raises(ValueError, match="one options for each"):
        moody.reset(options=[{}])
    for wrong in ([True] * 3, np.zeros(3, bool), np.ones(2, bool), np.ones(3)):
        with pytest.raises(ValueError, match="reset_mask"):
            moody.reset(options={"reset_mask": wrong})


def test_attributes_and_calls(moody: TextVectorEnv) -> None:
    moody.reset(seed=0)
    moody.set_attr("max_turns", [1, 2, 3])
    assert moody.get_attr("max_turns") == (1, 2, 3)
    moody.set_attr("close_s", 0.0)
    assert moody.step(["x"] * 3)[3].tolist() == [True, False, False]
    with pytest.raises(ValueError, match="3 values"):
        moody.set_attr("max_turns", [1])
    assert len(moody.call("expert")) == 3
    assert moody.render() == (None,) * 3


def test_wrong_actions_are_one_clear_error(moody: TextVectorEnv) -> None:
    moody.reset(seed=0)
    for wrong in ("abc", ["a"] * 2, ["a", "b", 3], "a"):
        with pytest.raises(UserError, match="sequence of 3 actions"):
            moody.step(wrong)  # type: ignore[arg-type]


def test_gymnasiums_wrappers_work_on_it(placement: str) -> None:
    env = RecordEpisodeStatistics(gymnasium.make_vec("zoo/Moody-v0", num_envs=2, placement=placement, max_turns=2))
    env.reset(seed=0, options={"task": "train/0"})
    env.step(["x", "ada"])
    infos = env.step(["ada", "late"])[4]
    assert infos["episode"]["r"].tolist() == [1.0, 0.0]
    assert infos["episode"]["l"].tolist() == [2, 0]
    as_list = DictInfoToList(gymnasium.make_vec("zoo/Moody-v0", num_envs=2, placement=placement))
    assert [info["success"] for info in as_list.reset(seed=0)[1]] == [False, False]
    env.close(), as_list.close()


@pytest.mark.parametrize(
    ("action", "reason"),
    [("raise oh", "env_raised"), ("exit 3", "env_died"), ("sleep 60", "env_timeout"), ("lock", "env_timeout")],
)
def test_a_failing_worker_costs_its_own_episode_and_is_replaced(action: str, reason: str) -> None:
    env = gymnasium.make_vec("zoo/Moody-v0", num_envs=3, placement="process", deadline_s=10.0)
    env.reset(seed=0, options={"task": "train/1"})
    env._backend._deadline_s = 1.0  # type: ignore[attr-defined]
    begin = time.monotonic()
    observations, rewards, terminations, truncations, infos = env.step(["x", action, "bell"])
    assert time.monotonic() - begin < 5.0
    assert observations == ("x", "", "bell")
    assert rewards.tolist() == [0.0, 0.0, 1.0]
    assert (terminations.tolist(), truncations.tolist()) == ([False, False, True], [False, True, False])
    assert infos["failure"].tolist() == [None, "infra", None]
    assert infos["failure_reason"].tolist() == [None, reason, None]
    assert infos["task_id"].tolist() == ["train/1"] * 3
    env._backend._deadline_s = 10.0  # type: ignore[attr-defined]
    observations, _, terminations, truncations, infos = env.step(["y", "ignored", "ignored"])
    assert observations[0] == "y"
    assert [text.startswith("Say") for text in observations] == [False, True, True]
    assert infos["failure"].tolist() == [None] * 3
    assert not (terminations | truncations).any()
    assert env.step(["y", "z", "w"])[0] == ("y", "z", "w")
    env.close()


def test_a_seeded_run_with_a_failure_repeats_itself() -> None:
    runs = []
    for _ in range(2):
        env = gymnasium.make_vec("zoo/Moody-v0", num_envs=2, placement="process")
        log = [env.reset(seed=3)[0]]
        log += [env.step(actions)[0] for actions in (["x", "exit 1"], ["x", "x"], ["x", "exit 1"], ["x", "x"])]
        runs.append((log, env.get_attr("state")))
        env.close()
    assert runs[0] == runs[1]


def test_a_worker_that_died_between_steps_gets_a_second_chance_at_reset() -> None:
    env = gymnasium.make_vec("zoo/Moody-v0", num_envs=2, placement="process")
    env.reset(seed=0)
    env._backend._workers[0].kill()  # type: ignore[attr-defined]
    assert len(env.reset(seed=0)[0]) == 2
    env.close()


def test_process_gains_on_slow_environments() -> None:
    """Four environments that think for 20 ms each: all at once, not one after the other."""
    env = gymnasium.make_vec("zoo/Moody-v0", num_envs=4, placement="process")
    env.reset(seed=0)
    begin = time.monotonic()
    for _ in range(10):
        env.step(["sleep 0.02"] * 4)
    seconds = time.monotonic() - begin
    env.close()
    assert seconds < 0.02 * 4 * 10 / 1.5  # one after the other takes 0.8 s; the rest is room for a busy machine


@pytest.mark.parametrize("placement", ["inline", "process"])
def test_a_closed_one_says_so(placement: str) -> None:
    envs = gymnasium.make_vec("rollcage/Countdown-v0", num_envs=2, placement=placement)
    envs.reset(seed=np.array([1, 2]))
    envs.close()
    for call in (envs.reset, lambda: envs.step(["", ""])):
        with pytest.raises(gymnasium.error.ClosedEnvironmentError):
            call()


def test_the_class_chooses_its_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = {**placement_zoo.MoodyEnv.metadata, "placement": "process"}
    monkeypatch.setattr(placement_zoo.MoodyEnv, "metadata", metadata)
    env = make_vector_env("zoo/Moody-v0", 1)
    assert type(env._backend).__name__ == "ProcessEnvs"
    env.close()


def test_bad_arguments_are_one_clear_error() -> None:
    with pytest.raises(UserError, match="knows no placement 'thread'"):
        gymnasium.make_vec("zoo/Moody-v0", num_envs=1, placement="thread")
    with pytest.raises(UserError, match="at least 1"):
        make_vector_env("zoo/Moody-v0", 0)
    for placement in PLACEMENTS:
        with pytest.raises(UserError, match="no split 'nope'"):
            gymnasium.make_vec("zoo/Moody-v0", num_envs=2, placement=placement, split="nope")
    with pytest.raises(AttributeError, match="Did you mean"):
        vector.__getattr__("rollcage/Countdwn-v0")


def test_infos_are_an_ordinary_dictionary_whichever_way_they_are_read() -> None:
    def infos() -> dict[str, Any]:
        env = make_vector_env("rollcage/Countdown-v0", 2)
        env.reset(seed=0)
        result = env.step(["<answer>1</answer>"] * 2)[4]
        env.close()
        return result

    keys = list(infos())
    assert keys[:4] == ["task_id", "_task_id", "success", "_success"]
    assert list(dict(infos())) == list({**infos()}) == list(infos() | {}) == list(infos().keys()) == keys
    assert len(infos()) == len(keys)
    assert "success" in infos()
    assert infos().get("nope", 3) == 3
    assert infos() != {}
    assert "task_id" in repr(infos())
    updated: dict[str, Any] = {}
    updated.update(infos())
    assert list(updated) == keys
    assert list(copy.deepcopy(infos())) == list(pickle.loads(pickle.dumps(infos()))) == keys
    written = infos()
    written["episode"] = 1
    assert list(written) == [*keys, "episode"]
    assert set(json.loads(json.dumps(infos(), default=lambda array: array.tolist()))) == set(keys)
