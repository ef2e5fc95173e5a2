"""Reading a run: what was written is what is read, while it grows, after a kill, and from old folders."""

import errno
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollcage.errors import UserError
from rollcage.monitor.run_folder import RunFolder, read_metrics, read_rows
from rollcage.monitor.store import RunReader, find_runs
from rollcage.monitor.store.columns import Column
from rollcage.monitor.store.episodes import SORTS
from rollcage.monitor.store.limits import StoreConfig
from rollcage.monitor.store.vocabulary import write_vocabulary

SMALL = StoreConfig(segment_mib=0.01)
"""A segment every few dozen rows."""


def begin(folder: Path, limits: StoreConfig | None = None, **config: Any) -> RunFolder:
    folder.mkdir(parents=True, exist_ok=True)
    asked = {"command": "rollcage train x", "config": {"rollout": {}, "num_updates": 100, **config}}
    (folder / "config.json").write_text(json.dumps(asked))
    return RunFolder(folder, limits)


def episode(number: int, **fields: Any) -> dict[str, Any]:
    turn = {"action": f"say {number}", "observation": "Wrong.", "start": 2, "end": 5, "finish_reason": "stop"}
    return {
        "id": f"{number // 2}.{number % 2}",
        "env_id": "rollcage/Countdown-v0",
        "task_id": f"train/{number // 2}",
        "prompt": "Make 24",
        "turns": [turn],
        "return": number / 100,
        "success": number % 3 == 0,
        "failure": None,
        "start_version": number // 10,
        "end_version": number // 10,
        "start_s": float(number),
        "end_s": number + 0.5,
        "segments": [{"token_ids": [1, 2, 3, 4, 5], "loss_mask": [0, 0, 1, 1, 1]}],
        **fields,
    }


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    writer = begin(tmp_path / "run", SMALL)
    yield writer
    writer.close()


@pytest.fixture
def reader(run: RunFolder) -> Iterator[RunReader]:
    with RunReader(run.path) as reader:
        yield reader


def test_curves_are_what_was_written_while_it_is_written(run: RunFolder, reader: RunReader) -> None:
    for version in range(1, 601):
        run.counter("tokens", 10, engine="0")
        run.metrics({"rollout/reward": version / 2, "time/elapsed_s": 2.0 * version}, policy_version=version)
        if version % 100 == 0:
            versions, rewards = reader.series(["rollout/reward"], max_points=10_000)["rollout/reward"]
            assert versions.tolist() == list(range(1, version + 1))
            assert rewards.tolist() == [version / 2 for version in versions]
    assert "counter/tokens{engine=0}" in reader.metric_names()
    assert reader.series(["counter/tokens{engine=0}"])["counter/tokens{engine=0}"][1][-1] == 6000.0
    assert list(run.path.glob("metrics-*")), "it was to be spread over segments"


def test_a_version_trained_again_after_a_resume_counts_once_and_its_last_value_counts(
    run: RunFolder, reader: RunReader
) -> None:
    for version, loss in ((1, 0.5), (2, 0.4), (3, 0.3), (2, 0.41), (3, 0.31), (4, 0.2)):
        run.metrics({"loss": loss}, policy_version=version)
    versions, losses = reader.series(["loss"])["loss"]
    assert (versions.tolist(), losses.tolist()) == ([1, 2, 3, 4], [0.5, 0.41, 0.31, 0.2])
    assert [row["loss"] for row in read_metrics(run.path)] == losses.tolist()


def test_fewer_points_keep_every_peak(run: RunFolder, reader: RunReader) -> None:
    values = np.sin(np.arange(3000) / 50)
    values[1234], values[2345] = 99.0, -99.0
    for version, value in enumerate(values):
        run.metrics({"x": float(value)}, policy_version=version)
    versions, shown = reader.series(["x"], max_points=100)["x"]
    assert len(shown) <= 100
    assert {99.0, -99.0} <= set(shown)
    assert (versions[0], versions[-1]) == (0, 2999)
    assert shown.tolist() == values[versions].tolist()


def test_trajectories_are_found_sorted_and_read_whole(run: RunFolder, reader: RunReader) -> None:
    failure = {"kind": "infra", "reason": "env_timeout", "message": "no answer within 5 s"}
    written = [episode(number, failure=failure if number == 7 else None) for number in range(60)]
    written[31]["turns"][0]["action"] = "Die Straße <b>"
    for record in written:
        run.trajectory(record)
    assert reader.trajectories()[0] == 60
    assert [found["id"] for found in reader.trajectories(limit=2)[1]] == ["29.1", "29.0"]
    assert [found["id"] for found in reader.trajectories(text="STRASSE <B>")[1]] == ["15.1"]
    assert [found["id"] for found in reader.trajectories(failure="infra")[1]] == ["3.1"]
    assert reader.trajectories(failure="any")[1] == reader.trajectories(text="no answer")[1]
    assert reader.trajectories(failure="none")[0] == 59
    assert reader.trajectories(min_version=2, max_version=3)[0] == 20
    assert reader.trajectories(success=True)[0] == 20
    assert reader.trajectories(env_id="rollcage/Countdown-v0", offset=50)[0] == 60
    assert len(reader.trajectories(env_id="rollcage/Countdown-v0", offset=50)[1]) == 10
    for sort in SORTS:
        column = [found[sort] for found in reader.trajectories(sort=sort, descending=False, limit=100)[1]]
        assert column == sorted(column)
    assert [found["id"] for found in reader.siblings("train/4")] == ["4.0", "4.1"]
    for found in reader.trajectories(limit=100)[1]:
        record = reader.trajectory(found["key"])
        del record["time"]
        assert record == written[2 * int(found["id"].split(".")[0]) + int(found["id"].split(".")[1])]
    with pytest.raises(UserError, match="cannot be sorted by 'id; DROP'"):
        reader.trajectories(sort="id; DROP")


@pytest.mark.parametrize("key", ["1-1", "1-99999999", "2-0", "0-0", "../1-0", "1-0/..", "", "1--1", "9" * 40 + "-0"])
def test_a_key_that_names_no_row_is_refused(run: RunFolder, reader: RunReader, key: str) -> None:
    run.trajectory(episode(0))
    assert reader.trajectory("1-0")["id"] == "0.0"
    with pytest.raises(UserError, match="there is no trajectory"):
        reader.trajectory(key)


def test_annotations_come_with_the_sample_they_were_made_of(run: RunFolder, reader: RunReader) -> None:
    run.trajectory(episode(0))
    run.write("annotations", {"id": "0.0", "advantages": [0.5, -0.5, 0.25]})
    run.trajectory(episode(1))
    run.write("trajectories", episode(0) | {"time": 4e9})  # made again after a resume, and not trained on yet
    [new, unused, trained] = reader.trajectories()[1]
    assert reader.trajectory(trained["key"])["annotations"]["advantages"] == [0.5, -0.5, 0.25]
    assert "annotations" not in reader.trajectory(unused["key"])
    assert "annotations" not in reader.trajectory(new["key"])


def test_an_episode_comes_with_the_texts_of_its_tokens(run: RunFolder, reader: RunReader) -> None:
    run.trajectory(episode(0))
    _, (summary,) = reader.trajectories()
    assert "pieces" not in reader.trajectory(summary["key"])["segments"][0], "a run without a vocabulary"
    write_vocabulary(run.path, ["<pad>", " the", "\ufffd", "<script>", "é"])
    pieces = reader.trajectory(summary["key"])["segments"][0]["pieces"]
    assert pieces == [" the", "\ufffd", "<script>", "é", ""], "an id beyond it has no text"


def test_following_gives_every_row_once_over_segments_that_are_closed_and_compressed(
    run: RunFolder, reader: RunReader
) -> None:
    rows, cursor = reader.follow()
    assert not any(rows.values())
    seen: list[int] = []
    for number in range(1000):
        run.event("tick", number=number)
        if number % 97 == 0:
            rows, cursor = reader.follow(cursor, max_rows=50)
            seen += [row["number"] for row in rows["events"]]
    while rows["events"]:
        rows, cursor = reader.follow(cursor, max_rows=50)
        seen += [row["number"] for row in rows["events"]]
    assert seen == list(range(1000))
    assert len(list(run.path.glob("events-*"))) > 3
    with pytest.raises(UserError, match="no cursor"):
        reader.follow('{"metrics": ["../..", 0]}')


def test_events_by_kind_and_page(run: RunFolder, reader: RunReader) -> None:
    for number in range(300):
        run.event("a" if number % 3 else "b", number=number)
    assert reader.event_kinds() == {"a": 200, "b": 100}
    total, page = reader.events(offset=10, limit=3, kinds=["b"])
    assert (total, [row["number"] for row in page]) == (100, [267, 264, 261])
    assert [row["number"] for row in reader.events(limit=2, newest_first=False)[1]] == [0, 1]


def test_the_timeline_in_a_window_and_merged(run: RunFolder, reader: RunReader) -> None:
    for number in range(500):
        run.span("learner", "train", number, number + 0.5, policy_version=number)
        run.span("learner", "wait", number + 0.5, number + 1.0)
    run.gauge("running", 3, at_s=-2.0)
    assert reader.time_range() == (-2.0, 500.0)
    total, spans = reader.spans(10.0, 11.0)
    assert total == 4  # 9.5 to 10, 10 to 10.5, 10.5 to 11, 11 to 11.5
    assert spans[0]["name"] == "wait"
    total, spans = reader.spans(max_spans=40)
    assert total == 1000
    assert len(spans) <= 40
    assert sum(span["num"] for span in spans) == 1000
    assert sum(span["busy_s"] for span in spans) == pytest.approx(500.0)


def test_gauges_and_histograms(run: RunFolder, reader: RunReader) -> None:
    for number in range(10):
        run.gauge("live", number, at_s=float(number), engine="1")
        run.histogram("publish_seconds", 0.003 * (number + 1))
    at_s, values = reader.gauges()["live{engine=1}"]
    assert at_s.tolist() == values.tolist() == list(range(10))
    assert reader.gauges(["live"]).keys() == {"live{engine=1}"}
    assert reader.gauges(["other"]) == {}
    found = reader.histograms()["publish_seconds"]
    assert (found["count"], found["max"], sum(found["counts"])) == (10, 0.03, 10)
    assert found["counts"].tolist()[:4] == [0, 0, 1, 2]  # up to 0.001, 0.0025, 0.005 (0.003), 0.01 (0.006, 0.009)


def test_what_a_killed_writer_leaves_is_read_and_gone_on_with(tmp_path: Path) -> None:
    """kill -9 in the middle of writing, compressing and indexing, again and again."""
    folder = tmp_path / "run"
    begin(folder).close()
    code = (
        "import itertools, sys\n"
        "from rollcage.monitor.run_folder import RunFolder\n"
        "from rollcage.monitor.store.limits import StoreConfig\n"
        "run = RunFolder(sys.argv[1], StoreConfig(segment_mib=0.02))\n"
        "for number in itertools.count(int(sys.argv[2])):\n"
        "    run.metrics({'x': float(number)}, policy_version=number)\n"
        "    if number % 2000 == 0: print(number, flush=True)\n"
    )
    written = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(folder), str(written)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= written + 4000:
                break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        with RunReader(folder) as reader:
            versions, values = reader.series(["x"], max_points=10**7)["x"]
        assert versions.tolist() == values.tolist() == list(range(len(versions)))
        assert [row["policy_version"] for row in read_rows(folder, "metrics")] == versions.tolist()
        assert len(versions) > written + 4000
        written = len(versions)


def test_a_half_written_last_line_is_left_out_until_it_is_whole(run: RunFolder, reader: RunReader) -> None:
    run.event("first")
    with (run.path / "events.jsonl").open("a") as file:
        file.write('{"event": "sec')
        file.flush()
        assert [row["event"] for row in reader.events()[1]] == ["first"]
        file.write('ond", "time": 1}\n')
    assert [row["event"] for row in reader.events()[1]] == ["second", "first"]


def test_the_index_may_be_deleted_or_damaged_at_any_moment(run: RunFolder, reader: RunReader) -> None:
    for version in range(500):
        run.metrics({"x": float(version)}, policy_version=version)
        run.trajectory(episode(version))

    def read() -> Any:
        return reader.series(["x"], 10_000)["x"][1].tolist(), reader.trajectories(limit=1000)

    expected = read()
    shutil.rmtree(run.path / "index")
    assert read() == expected
    reader.close()
    (run.path / "index" / "index.sqlite").write_bytes(b"this is no database, whatever its name says" * 100)
    assert read() == expected
    reader.close()
    for column in (run.path / "index").glob("*.column"):
        column.write_bytes(b"")
    assert read() == expected


def test_another_run_in_the_same_folder_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    first = begin(tmp_path / "run")
    for number in range(100):
        first.event("old", number=number)
    first.close()
    with RunReader(tmp_path / "run") as reader:
        assert reader.events()[0] == 100
        shutil.rmtree(tmp_path / "run")
        second = begin(tmp_path / "run")
        second.event("new")
        assert [row["event"] for row in reader.events()[1]] == ["new"]
        second.close()


def test_many_read_at_once(run: RunFolder) -> None:
    """Threads with readers of their own, beside the writer's own housekeeping."""
    faults: list[BaseException] = []

    def look() -> None:
        try:
            with RunReader(run.path) as reader:
                last = 0
                while last < 2000:
                    now = len(reader.series(["x"], 10_000)["x"][0])
                    assert now >= last
                    last = now
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for version in range(2000):
        run.metrics({"x": 1.0}, policy_version=version)
    for thread in threads:
        thread.join(60)
    assert faults == []


def test_old_segments_are_compressed_and_dropped_and_the_curves_stay(tmp_path: Path) -> None:
    limits = StoreConfig(segment_mib=0.02, keep_mib=0.02, keep_small_mib=0.005)
    run = begin(tmp_path / "run", limits)
    for number in range(2000):
        run.metrics({"x": float(number)}, policy_version=number)
        run.trajectory(episode(number))
    run.close()
    size = sum(path.stat().st_size for path in run.path.glob("*.jsonl*"))
    assert size < 2 * (0.02 + 0.02 + 0.02) * (1 << 20)
    closed = sorted(run.path.glob("trajectories-*"))
    assert all(path.suffix == ".gz" for path in closed)
    with gzip.open(closed[-1], "rt") as file:
        assert all(json.loads(line)["env_id"] for line in file)
    with RunReader(run.path) as reader:
        assert len(reader.series(["x"], 10_000)["x"][0]) == 2000
        total, found = reader.trajectories(limit=2000)
        assert 0 < total < 2000
        assert reader.trajectory(found[-1]["key"])["id"] == found[-1]["id"]
        assert found[0]["id"] == "999.1"


def test_a_folder_that_cannot_be_written_is_read_all_the_same(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    run.event("only")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with RunReader(run.path) as reader:
        assert reader.events()[0] == 1
        assert not (run.path / "index").exists()


def test_on_a_full_disk_what_was_there_before_is_shown(
    run: RunFolder, reader: RunReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    run.metrics({"x": 1.0}, policy_version=1)
    assert len(reader.series(["x"])["x"][0]) == 1
    with monkeypatch.context() as on_a_full_disk:
        on_a_full_disk.setattr(Column, "append", full)
        run.metrics({"x": 2.0}, policy_version=2)
        assert len(reader.series(["x"])["x"][0]) == 1
    assert len(reader.series(["x"])["x"][0]) == 2


def test_a_row_that_did_not_fit_on_the_disk_leaves_no_trace(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(file: Any, line: bytes) -> None:
        file.write(line[: len(line) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    run.event("first")
    with monkeypatch.context() as on_a_full_disk:
        on_a_full_disk.setattr("rollcage.monitor.run_folder._write_all", half)
        with pytest.raises(OSError, match="No space"):
            run.event("lost")
    run.event("second")
    assert [row["event"] for row in read_rows(run.path, "events")] == ["first", "second"]


def test_the_configuration_is_shown_without_its_secrets(tmp_path: Path) -> None:
    config = {"api_key": "sk-1", "env": {"args": {"password": "p", "TOKEN": "t"}}, "max_new_tokens": 7}
    begin(tmp_path / "run", None, **config).close()
    with RunReader(tmp_path / "run") as reader:
        shown = reader.config()["config"]
    assert shown["env"]["args"] == {"password": "***", "TOKEN": "***"}
    assert (shown["api_key"], shown["max_new_tokens"]) == ("***", 7)


def test_runs_are_found_the_newest_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "older/seed-0", "oldest/a/b")):
        begin(tmp_path / name).close()
        os.utime(tmp_path / name / "config.json", (1e9 - age, 1e9 - age))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    assert [path.name for path in find_runs(tmp_path)] == ["new", "seed-0"]
    assert find_runs(tmp_path / "new") == [tmp_path / "new"]
    with pytest.raises(UserError, match="there is no such folder"):
        find_runs(tmp_path / "none")
    with pytest.raises(UserError, match="not a run folder"):
        RunReader(tmp_path)
