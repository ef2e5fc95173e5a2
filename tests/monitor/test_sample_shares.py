"""The table of samples that starve: over all lives of a run, and fair to those that were cut off."""

from collections import Counter
from pathlib import Path

import pytest

from rollcage.monitor.report import write_report
from rollcage.monitor.run_folder import RunFolder
from rollcage.monitor.sample_shares import uncut
from rollcage.monitor.shares_read import shares_of
from rollcage.monitor.store import RunReader


def test_the_report_shows_which_samples_starve_over_all_lives_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for life in range(2):  # counters begin anew in the second
        run = RunFolder(tmp_path)
        for version in range(1, 4):
            run.counter("samples_by_duration_s", 10, upper="8", outcome="trained")
            run.counter("samples_by_duration_s", 1, upper="128", outcome="trained")
            run.counter("samples_by_duration_s", 3, upper="128", outcome="late")
            run.counter("samples_by_difficulty", 14, upper="unknown", outcome="failed")
            run.metrics({"time/elapsed_s": version}, policy_version=3 * life + version)
        run.close()
    with RunReader(tmp_path) as reader:
        shares = shares_of(reader)
    assert list(shares["duration_s"]) == ["8", "128"]
    assert shares["duration_s"]["128"] == {"trained": 6, "late": 18}
    page = (write_report(tmp_path, command="rollcage train x") / "README.md").read_text()
    assert "| duration, s | 8 | 60 | 100% | 0 | 0 | 0 | 0 |" in page
    assert "| duration, s | 128 | 6 | 100% | 0 | 0 | 0 | 18 |" in page
    assert "| duration, s | longer | 18 | 0% | 0 | 0 | 0 | 0 |" in page
    assert "| difficulty | unknown | 84 | 0% | 0 | 84 | 0 | 0 |" in page


def test_the_late_are_spread_over_what_became_longer_and_none_is_lost() -> None:
    # 100 samples, half of them short; half of the others are cut off at 3 s
    buckets = {"2": Counter(trained=50), "4": Counter(late=25), "32": Counter(trained=15), "64": Counter(trained=10)}
    numbers = uncut(buckets)
    assert numbers == pytest.approx({"2": 50, "4": 0, "32": 30, "64": 20})
    assert sum(numbers.values()) == 100
