"""The run folder: append-only streams that survive a kill."""

import json
from pathlib import Path

import pytest

from rollcage.errors import UserError
from rollcage.monitor.run_folder import RunFolder, read_metrics, read_rows
from rollcage.recorder import Recorder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    (tmp_path / "config.json").write_text("{}")
    return RunFolder(tmp_path)


def test_rows_are_on_disk_as_soon_as_they_are_written(run: RunFolder) -> None:
    recorder: Recorder = run
    recorder.counter("tokens", 5, engine="0")
    recorder.counter("tokens", 7, engine="0")
    recorder.metrics({"loss": 0.5}, policy_version=1)
    recorder.event("checkpoint", path="step-1")
    recorder.span("learner", "train", 1.0, 2.5)
    recorder.gauge("running_episodes", 3, at_s=1.5)
    recorder.trajectory({"id": "0.0"})
    assert read_metrics(run.path)[0]["counters"] == {"tokens{engine=0}": 12.0}
    assert read_rows(run.path, "events")[0]["path"] == "step-1"
    assert [row.get("span") or row.get("gauge") for row in read_rows(run.path, "timeline")] == [
        "train",
        "running_episodes",
    ]
    assert read_rows(run.path, "trajectories")[0]["id"] == "0.0"
    run.close()
    run.close()


def test_a_half_written_line_is_not_read_and_not_continued(run: RunFolder) -> None:
    run.event("first")
    run.close()
    path = run.path / "events.jsonl"
    with path.open("a") as file:
        file.write('{"event": "half')  # killed while writing
    assert [row["event"] for row in read_rows(run.path, "events")] == ["first"]
    again = RunFolder(run.path)
    again.event("second")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["first", "second"]
    again.close()


def test_an_update_that_was_made_again_after_a_resume_counts_once(run: RunFolder) -> None:
    for version, loss in ((1, 0.5), (2, 0.4), (3, 0.3), (2, 0.41), (3, 0.31)):
        run.metrics({"loss": loss}, policy_version=version)
    assert [(row["policy_version"], row["loss"]) for row in read_metrics(run.path)] == [(1, 0.5), (2, 0.41), (3, 0.31)]
    run.close()


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        read_rows(tmp_path, "metrics")
