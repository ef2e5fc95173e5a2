"""The rollout's configuration: what cannot be meant is refused, all of it in one line."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.scripted_run import ScriptedRun, World

from rollcage.envs.swe.env import SWEMiniEnv
from rollcage.errors import UserError
from rollcage.trainer.config import TrainConfig
from rollcage.trainer.presets import PRESETS
from rollcage.trainer.rollout import episode
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.run import Run
from rollcage.trainer.train_arguments import parse_train


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_groups": 0}, "num_groups must be at least 1, not 0"),
        ({"async_ratio": -0.5}, "async_ratio must be at least 0"),
        ({"async_ratio": float("nan")}, "async_ratio must be at least 0"),
        ({"async_ratio": float("inf")}, "async_ratio must be at least 0"),
        ({"extra_groups": -1}, "extra_groups must be at least 0"),
        ({"extra_members": -1}, "extra_members must be at least 0"),
        ({"turn_deadline_s": 0.0}, "turn_deadline_s must be above 0"),
        ({"step_deadline_s": -1.0}, "step_deadline_s must be at least 0"),
        ({"mode": "lockstep"}, "mode must be one of async, sync"),
        ({"interrupt": "stop"}, "interrupt must be one of continue, abort, wait"),
        ({"group_filter": "median"}, "group_filter must be one of none, mean, std"),
        ({"mode": "sync", "num_slots": 256}, "async_ratio, extra_groups and extra_members must be 0"),
        ({"mode": "sync", "async_ratio": 0.0, "num_slots": 255}, "num_slots must be 256 or more"),
        ({"replicate": False, "num_slots": 9, "extra_members": 2}, "num_slots must be 10 or more"),
        ({"group_filter": "mean", "filter_low": 1.0}, "filter_low must be below filter_high"),
        ({"group_filter": "std", "group_size": 1}, "needs a group_size of 2"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TrainConfig("small", rollout=RolloutConfig(**fields))


def test_the_command_line_has_every_choice() -> None:
    words = (
        "countdown-small --rollout.mode sync --rollout.async-ratio 0 --rollout.num-slots 256 --rollout.no-replicate "
        "--rollout.interrupt abort --rollout.group-filter std --rollout.filter-low 0.1 --rollout.step-deadline-s 60"
    )
    config = parse_train(words.split()).config
    assert config is not None
    rollout = config.rollout
    assert (rollout.mode, rollout.replicate, rollout.interrupt) == ("sync", False, "abort")
    assert (rollout.group_filter, rollout.filter_low, rollout.step_deadline_s) == ("std", 0.1, 60.0)
    config = parse_train(["countdown-small", "--rollout.extra-groups", "4", "--rollout.extra-members", "1"]).config
    assert config is not None
    assert (config.rollout.extra_groups, config.rollout.extra_members) == (4, 1)


@pytest.mark.parametrize(("declared_s", "failed"), [(0.0, 4), (100.0, 0)])
def test_an_environment_gets_the_time_that_it_declares_and_its_episodes_last_longer_by_that(
    declared_s: float, failed: int
) -> None:
    metadata = {"reset_s": 1.0, "step_s": declared_s} if declared_s else {}
    config = RolloutConfig(
        num_groups=1, group_size=2, num_slots=3, async_ratio=0.0, env_deadline_s=60.0, episode_deadline_s=120.0
    ).allowing(episode.declared_s(metadata))
    assert config.env_deadline_s == max(60.0, declared_s)
    assert config.episode_deadline_s == (200.0 if declared_s else 120.0)

    def latency_s(task: str, seed: int, turn: int) -> float:
        return 90.0 if task == "task 0" else 1.0

    run = ScriptedRun(config, World(latency_s=latency_s))(1)
    assert run.account.failed.total() == failed
    assert run.groups == ([[0]] if declared_s else [[1]])


def test_a_run_takes_the_time_that_its_environment_declares(tmp_path: Path) -> None:
    preset = PRESETS["swemini-smollm2"][1]
    config = replace(preset, model="small", rollout=replace(preset.rollout, env_deadline_s=5.0))
    run = Run(tmp_path / "run", config, "rollcage train")
    run._recorder.close()
    assert run._rollout.env_deadline_s == SWEMiniEnv.metadata["step_s"] == 60.0
