"""How a run stands, as its folder tells it."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollcage.monitor.run_folder import RunFolder
from rollcage.monitor.store import RunReader


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    asked = {"command": "", "config": {"rollout": {}, "num_updates": 10, "max_train_s": 1e9}}
    (tmp_path / "config.json").write_text(json.dumps(asked))
    writer = RunFolder(tmp_path)
    yield writer
    writer.close()


@contextmanager
def held(run: RunFolder) -> Iterator[None]:
    """As by the process that trains."""
    with (run.path / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def state(run: RunFolder) -> str:
    with RunReader(run.path) as reader:
        return str(reader.status()["state"])


def update(run: RunFolder, *versions: int) -> None:
    for version in versions:
        run.metrics({"time/elapsed_s": 3.0 * version}, policy_version=version)


def test_running_paused_and_how_long_it_will_take(run: RunFolder) -> None:
    run.event("start", resumed_from=None)
    update(run, 1, 2, 3, 4)
    with held(run), RunReader(run.path) as reader:
        status = reader.status()
        assert (status["state"], status["policy_version"], status["num_updates"]) == ("running", 4, 10)
        assert (status["train_s"], status["eta_s"]) == (12.0, 18.0)
        assert status["started_at"] <= status["updated_at"]
        run.event("paused")
        assert reader.status()["state"] == "paused"
        run.event("resumed")
        assert reader.status()["state"] == "running"


def test_how_it_ended(run: RunFolder) -> None:
    run.event("start", resumed_from=None)
    update(run, 1, 2)
    assert state(run) == "unknown"  # written by something that does not say whether it is there
    with held(run):
        pass
    assert state(run) == "dead"
    run.event("stopped", error="", policy_version=2)
    assert state(run) == "stopped"
    run.event("failed", error="no engine is left", policy_version=2)
    with RunReader(run.path) as reader:
        assert (reader.status()["state"], reader.status()["error"]) == ("failed", "no engine is left")
    with held(run):  # resumed
        assert state(run) == "running"
        run.event("start", resumed_from="step-2")
        update(run, 3, 10)
    run.event("finished", policy_version=10)
    assert state(run) == "finished"


def test_an_old_run_that_made_all_its_updates_is_finished_without_a_word(run: RunFolder) -> None:
    update(run, *range(1, 11))
    assert state(run) == "finished"
