"""However long a run goes on, its index stays small, and its readers never wait for long."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rollcage.monitor.run_folder import RunFolder
from rollcage.monitor.store import RunReader
from rollcage.monitor.store.columns import POINT
from rollcage.monitor.store.downsample import FIRST, thinned
from rollcage.monitor.store.intake import Intake
from rollcage.monitor.store.segments import close_segment, compress

MOST = 2048
NUM = 10_000


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    (tmp_path / "config.json").write_text('{"command": "", "config": {"rollout": {}}}')
    writer = RunFolder(tmp_path)
    yield writer
    writer.close()


def test_a_curve_that_is_thinned_again_and_again_keeps_its_peaks_everywhere() -> None:
    points = np.empty(0, POINT)
    for begin in range(0, 40_000, 1000):
        more = np.zeros(1000, POINT)
        more["at"] = np.arange(begin, begin + 1000)
        more["value"] = np.sin(more["at"] / 1000)
        more["value"][500] = 5.0 if begin % 2000 else -5.0
        points = thinned(np.concatenate([points, more]), most=1500, newest=64)
    assert len(points) <= 1500
    assert np.all(np.diff(points["at"]) > 0)
    assert (points["value"] == 5.0).sum() == (points["value"] == -5.0).sum() == 20
    assert points["at"][:FIRST].tolist() == list(range(FIRST))
    assert points["at"][-64:].tolist() == list(range(39_936, 40_000))
    by_tenth, _ = np.histogram(points["at"][FIRST:-64], bins=10, range=(0, 40_000))
    assert by_tenth.min() > 0.5 * by_tenth.max(), "as fine at the beginning as at the end"


def test_gaps_stay_gaps() -> None:
    points = np.zeros(4000, POINT)
    points["at"] = np.arange(4000)
    points["value"][1000:3000] = np.nan
    kept = thinned(points, most=1000, newest=64)
    gap = (kept["at"] >= 1000) & (kept["at"] < 3000)
    assert gap.any()
    assert np.isnan(kept["value"][gap]).all()
    assert not np.isnan(kept["value"][~gap]).any()


def test_the_index_of_a_long_run_is_bounded_and_loses_no_second(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollcage.monitor.store.index.Intake", partial(Intake, most=MOST))
    with RunReader(run.path) as reader:
        for number in range(NUM):
            run.gauge("live", float(number == 1234), at_s=float(number))
            run.span("engine 0", "generate", number, number + 0.5, num=2, busy_s=0.25)
            run.histogram("publish_seconds", 0.3)
            if number % 1000 == 999:
                reader.time_range()
        at_s, values = reader.gauges(max_points=NUM)["live"]
        assert len(at_s) <= MOST
        assert values.max() == 1.0
        assert (at_s[0], at_s[-1]) == reader.time_range() or reader.time_range() == (0.0, NUM - 0.5)
        num_spans, spans = reader.spans(max_spans=NUM)
        assert num_spans == len(spans) <= MOST
        assert sum(span["num"] for span in spans) == 2 * NUM
        assert sum(span["busy_s"] for span in spans) == pytest.approx(0.25 * NUM)
        assert spans[-1]["end_s"] == NUM - 0.5
        found = reader.histograms()["publish_seconds"]
        assert (found["count"], found["sum"]) == (NUM, pytest.approx(0.3 * NUM))
    columns = list((run.path / "index").glob("*.column"))
    assert sum(path.stat().st_size for path in columns) < 3 * len(columns) * MOST * 16


def test_a_version_trained_again_counts_once_in_a_thinned_curve(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollcage.monitor.store.index.Intake", partial(Intake, most=MOST))
    for life in range(2):
        for version in range(1500):
            run.metrics({"loss": float(life)}, policy_version=version)
    with RunReader(run.path) as reader:
        versions, losses = reader.series(["loss"], NUM)["loss"]
    assert (versions[0], versions[-1]) == (0, 1499)
    assert np.all(np.diff(versions) > 0)
    assert set(losses) == {1.0}


def test_a_reader_in_a_hurry_shows_what_it_has_got_and_says_that_it_is_not_all(run: RunFolder) -> None:
    for version in range(30):
        run.metrics({"loss": 1.0}, policy_version=version)
        run.event("tick")
    run.trajectory({"id": "0.0", "turns": []})
    with RunReader(run.path, pace_s=0.0) as reader:
        seen = [len(reader.series(["loss"])["loss"][0])]
        assert 1 <= seen[0] < 30
        assert reader.status()["is_partial"]
        assert reader.trajectories()[0] == 1, "no stream waits for the others"
        while reader.status()["is_partial"]:
            seen.append(len(reader.series(["loss"])["loss"][0]))
        assert sorted(seen) == seen
        assert len(reader.series(["loss"])["loss"][0]) == reader.events()[0] == 30


def test_a_reader_in_a_hurry_gets_on_in_a_compressed_segment(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever goes on in the middle of it must unpack all before it: one row a call would never end."""
    num = 1000
    for version in range(num):
        run.metrics({f"statistic {number}": number / 7 for number in range(10)}, policy_version=version)
    run.close()
    compress(close_segment(run.path, "metrics"))
    told: list[bool] = []
    take_in = Intake.take_in
    monkeypatch.setattr(Intake, "take_in", lambda *given: told.append(take_in(*given)) or told[-1])
    with RunReader(run.path, pace_s=0.0) as reader:
        while reader.status()["is_partial"]:
            pass
        assert len(reader.series(["statistic 3"], num)["statistic 3"][0]) == num
    assert len(told) < num / 4
