"""The load benchmark at small size: what it counts is what was asked and written. It says nothing of time."""

from pathlib import Path

from rollcage.benchmarks.monitor.load import measure
from rollcage.benchmarks.monitor.writers import POINTS, write_runs
from rollcage.monitor.store import RunReader


def test_every_viewer_is_answered_while_the_runs_write(tmp_path: Path) -> None:
    figures = measure(tmp_path / "runs", num_viewers=3, num_runs=2, points_per_s=1000.0, seconds=3.0)
    assert figures["faults"] == []
    assert figures["answers"] >= 3 * 3
    assert figures["changes_told"] >= 3
    assert figures["points_written"] > 0


def test_the_writers_keep_the_pace_and_what_they_count_is_there(tmp_path: Path) -> None:
    written = write_runs(tmp_path, 2, 1000.0, 1.0)
    assert 0 < written <= 1000 + POINTS
    found = 0
    for number in range(2):
        with RunReader(tmp_path / f"run-{number}") as reader:
            found += reader.status()["policy_version"]
    assert found * POINTS == written
