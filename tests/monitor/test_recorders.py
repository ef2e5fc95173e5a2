"""Recorders beside the run folder: several at once, TensorBoard's files, and what Weights & Biases is told."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from rollcage.errors import MissingExtra, UserError
from rollcage.monitor.config import MonitorConfig
from rollcage.monitor.live import Live
from rollcage.monitor.recorders.several import Several
from rollcage.monitor.recorders.tensorboard import TensorBoardRecorder
from rollcage.monitor.recorders.wandb import WandbRecorder
from rollcage.monitor.run_folder import RunFolder, read_rows
from rollcage.recorder import NullRecorder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


class Broken(NullRecorder):
    """Raises at the first event."""

    num_told = 0

    def event(self, name: str, **fields: Any) -> None:
        self.num_told += 1
        raise ConnectionError("no route to host")

    def close(self) -> None:
        raise ConnectionError("no route to host")


def test_a_recorder_that_fails_is_left_out_and_the_run_goes_on(folder: Path) -> None:
    broken = Broken()
    several = Several(RunFolder(folder), [broken])
    several.event("first")
    several.event("second")
    several.close()
    events = [(row["event"], row.get("message")) for row in read_rows(folder, "events")]
    assert events == [
        ("first", None),
        ("recorder_failed", "ConnectionError: no route to host"),
        ("second", None),
    ]
    assert broken.num_told == 1


def test_tensorboard_reads_what_was_written(folder: Path) -> None:
    recorder = TensorBoardRecorder(folder / "tensorboard")
    recorder.metrics({"rollout/reward": 0.25, "learner/loss": -1.0}, policy_version=1)
    recorder.metrics({"rollout/reward": 0.5}, policy_version=2)
    recorder.close()
    recorder.close()
    (file,) = (folder / "tensorboard").iterdir()
    scalars = [
        (event.step, value.tag, round(value.tensor.float_val[0], 6))
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
    ]
    assert scalars == [(1, "rollout/reward", 0.25), (1, "learner/loss", -1.0), (2, "rollout/reward", 0.5)]


def test_wandb_is_told_by_its_documented_calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """wandb itself is not installed for the tests: a stand-in with `init`, `log` and `finish` as documented."""
    told: list[Any] = []
    run = SimpleNamespace(
        log=lambda data, step: told.append((step, data)), finish=lambda exit_code=None: told.append("finished")
    )
    started: dict[str, Any] = {}
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **given: started.update(given) or run))
    recorder = WandbRecorder(folder, "my-project", {"seed": 3})
    assert not started, "nothing is begun before there is something to tell"
    recorder.metrics({"rollout/reward": 0.5}, policy_version=7)
    recorder.close()
    recorder.close()
    assert told == [(7, {"rollout/reward": 0.5, "policy_version": 7}), "finished"]
    assert (started["project"], started["id"], started["resume"]) == ("my-project", folder.name, "allow")
    assert (started["dir"], started["config"]) == (str(folder), {"seed": 3})


def test_who_is_not_installed_is_said_before_anything_starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match="wandb"):
        Live(RunFolder(folder), folder, MonitorConfig(wandb="project"), {})


def test_a_live_run_serves_its_metrics_and_says_where(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from urllib.request import urlopen

    live = Live(RunFolder(folder), folder, MonitorConfig(), {})
    with live.serving({"pause": lambda arguments: None}):
        live.recorder.metrics({"rollout/reward": 0.5}, policy_version=7)
        address = json.loads((folder / "control.json").read_text())["address"]
        assert capsys.readouterr().err == f"metrics: {address}/metrics\n"
        with urlopen(f"{address}/metrics", timeout=5) as answer:
            assert b"\nrollcage_rollout_reward 0.5\n" in answer.read()
    live.recorder.close()
    assert not (folder / "control.json").exists()


def test_settings_that_cannot_be_meant_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match="port must be"):
        MonitorConfig(port=99999)
    (folder / "token").write_text("short")
    for token_file, message in (("token", "16 or more"), ("none", "cannot be read")):
        with pytest.raises(UserError, match=message):
            Live(RunFolder(folder), folder, MonitorConfig(token_file=str(folder / token_file)), {})
