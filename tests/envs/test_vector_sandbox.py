"""`gymnasium.make_vec(..., placement="sandbox")` on a real daemon: the same transcripts, failures, and nothing left."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from tests.envs.placements.conftest import base_image, docker_endpoint, env_image, manager_id
from tests.envs.swe.conftest import close_labs
from tests.sandbox.docker_client import Daemon

sys.path.insert(0, str(Path(__file__).parent / "zoo"))
import placement_zoo  # noqa: F401  (registers zoo/Moody-v0)

from rollcage.envs.placements.frames import plain
from rollcage.envs.tools import write_call
from rollcage.envs.vector import TextVectorEnv
from rollcage.errors import UserError

__all__ = ["base_image", "docker_endpoint", "env_image", "manager_id"]

STEPS = (("ada", "bell"), ("<answer>1+1</answer>", "right"), ("", "\ud800\x00"), ("x", "y"), ("ada", "bell"))


@pytest.fixture
def daemon(docker_endpoint: str, manager_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """Managers keep their state in a folder of the test's, and label what they make with its id."""
    close_labs()
    for folder in (tmp_path / "state", tmp_path / "state" / "envs" / "0"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "id").write_text(manager_id)
    monkeypatch.setenv("ROLLCAGE_SANDBOX", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", docker_endpoint)
    daemon = Daemon(docker_endpoint, manager_id)
    yield daemon
    assert daemon.containers() == [], "closing leaves nothing"


def make_vec(env_id: str, **arguments: Any) -> closing[TextVectorEnv]:
    envs = gymnasium.make_vec(env_id, **arguments)
    assert isinstance(envs, TextVectorEnv)
    return closing(envs)


def said(entry: tuple[Any, ...]) -> Any:
    """What a reset or step of a vector environment returned, as JSON has it."""
    return plain([*entry[:-1], dict(entry[-1])])


@pytest.mark.parametrize(
    ("env_id", "elsewhere"),
    [
        ("rollcage/Countdown-v0", "inline"),
        ("zoo/Moody-v0", "process"),  # its infos hold numpy's types, which become JSON's on the way
    ],
)
def test_the_same_transcripts_as_elsewhere(env_id: str, elsewhere: str, daemon: Daemon, env_image: str) -> None:
    logs = []
    for placement in (elsewhere, "sandbox"):
        with make_vec(env_id, num_envs=2, placement=placement, max_turns=3) as envs:
            log = [said(envs.reset(seed=3))]
            log += [said(envs.step(actions)) for actions in STEPS]
            logs.append((log, envs.call("expert"), envs.metadata, envs.single_action_space))
            assert len(daemon.containers()) == (2 if placement == "sandbox" else 0)
    assert logs[0] == logs[1]


def test_a_killed_container_costs_its_own_episode_and_is_replaced(daemon: Daemon, env_image: str) -> None:
    with make_vec("zoo/Moody-v0", num_envs=2, placement="sandbox") as envs:
        envs.reset(seed=0)
        daemon("kill", daemon.containers()[0])
        observations, rewards, _, truncations, infos = envs.step(["x", "x"])
        assert sorted(observations) == ["", "x"]
        [lost] = (i for i in range(2) if observations[i] == "")
        assert (rewards[lost], truncations[lost], truncations[1 - lost]) == (0.0, True, False)
        assert (infos["failure"][lost], infos["failure_reason"][lost]) == ("infra", "env_died")
        observations, _, _, truncations, infos = envs.step(["y", "y"])
        assert observations[lost].startswith("Say"), "the next episode, in a new container"
        assert not truncations.any()
        assert infos["failure"].tolist() == [None, None]
        observations, _, _, truncations, _ = envs.step(["raise oh", "x"] if lost else ["x", "raise oh"])
        assert (observations[lost], truncations.tolist()) == ("x", [lost == 1, lost == 0])
    with pytest.raises(gymnasium.error.ClosedEnvironmentError):
        envs.step(["x", "x"])


_FORGETFUL = """
import gymnasium, rollcage
envs = gymnasium.make_vec("rollcage/Countdown-v0", num_envs=2, placement="sandbox")
print(len(envs.reset(seed=0)[0]))
"""


def test_one_that_nobody_closes_leaves_nothing_either(daemon: Daemon, env_image: str) -> None:
    done = subprocess.run((sys.executable, "-c", _FORGETFUL), capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")
    assert daemon.containers() == []


def test_several_at_once_share_one_manager(daemon: Daemon, env_image: str) -> None:
    before = threading.active_count()
    with make_vec("rollcage/Countdown-v0", num_envs=1, placement="sandbox") as envs:
        with make_vec("rollcage/FrozenLake-v0", num_envs=1, placement="sandbox") as others:
            assert envs.reset(seed=0)[0] != others.reset(seed=0)[0]
            assert len(daemon.containers()) == 2
        assert len(daemon.containers()) == 1
        assert len(envs.step(["x"])[0]) == 1
    assert threading.active_count() == before


def test_environments_with_sandboxes_of_their_own_keep_them_where_they_reach_the_manager(
    daemon: Daemon, base_image: str
) -> None:
    with make_vec("rollcage/SWEMini-v0", num_envs=2, placement="sandbox") as envs:
        envs.reset(seed=0)
        for _ in range(2):
            observations = envs.step([write_call("bash", command="git log --oneline | wc -l")] * 2)[0]
            assert [text.split()[0] for text in observations] == ["1", "1"]
            assert len(daemon.containers()) == 2, "one for each episode"
        _, rewards, terminations, _, infos = envs.step(envs.call("gold"))
        assert (rewards.tolist(), terminations.tolist()) == ([1.0, 1.0], [True, True])
        assert infos["status"].tolist() == ["resolved", "resolved"]


def test_what_cannot_be_is_one_clear_error(daemon: Daemon, env_image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no split 'nope'"):
        gymnasium.make_vec("rollcage/Countdown-v0", num_envs=2, placement="sandbox", split="nope")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(UserError, match="no Docker daemon answers") as caught:
        gymnasium.make_vec("rollcage/Countdown-v0", num_envs=2, placement="sandbox")
    assert "\n" not in str(caught.value)
