"""What the routes tell, against what was written: live changes, comparisons, the account, environments, episodes."""

import http.client
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.monitor.pages.recorded_run import (
    FAILURES,
    TRACEBACK,
    episode,
    metrics_of,
    write_config,
    write_run,
    write_update,
)
from tests.monitor.server.browser import Browser, serving

from rollcage.monitor.run_folder import RunFolder
from rollcage.monitor.server import stream
from rollcage.monitor.server.comparing import band

NUM_UPDATES = 12


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    top = tmp_path_factory.mktemp("routes") / "runs"
    for seed in range(3):
        write_run(top / "seeds" / f"countdown-{seed}", seed=seed, num_updates=NUM_UPDATES, num_episodes=20)
    (top / "damaged").mkdir()
    write_config(top / "damaged", seed=9, num_updates=1)
    (top / "damaged" / "metrics.jsonl").write_bytes(b"\x00\xff not json\n[1]\n{}\n")
    with serving(top) as asks:
        yield asks


RUN = "seeds/countdown-0"


def test_runs_are_listed_with_their_last_figures_and_a_damaged_one_harms_nobody(browser: Browser) -> None:
    while any(run["is_partial"] for run in browser.get("/api/runs")["runs"]):
        time.sleep(0.1)
    runs = {run["id"]: run for run in browser.get("/api/runs")["runs"]}
    assert set(runs) == {"damaged", *(f"seeds/countdown-{seed}" for seed in range(3))}
    run = runs[RUN]
    assert (run["state"], run["policy_version"], run["num_updates"], run["progress"]) == ("finished", 12, 12, 1.0)
    assert run["last"]["rollout/reward"] == pytest.approx(metrics_of(12, 0)["rollout/reward"])
    assert len({runs[f"seeds/countdown-{seed}"]["group"] for seed in range(3)}) == 1  # but the seed the same
    assert set(runs["damaged"]) >= set(run)


def test_series_are_those_that_were_written(browser: Browser) -> None:
    found = browser.run(RUN, "series?names=rollout/reward&names=learner/entropy&names=none")["series"]
    assert found["rollout/reward"]["policy_version"] == list(range(1, 13))
    assert found["rollout/reward"]["value"] == [metrics_of(v, 0)["rollout/reward"] for v in range(1, 13)]
    assert found["none"] == {"policy_version": [], "value": []}
    assert "rollout/reward" in browser.run(RUN, "metric_names")["names"]
    assert len(browser.run(RUN, "series?names=rollout/reward&max_points=4")["series"]["rollout/reward"]["value"]) <= 4


def test_a_comparison_is_the_mean_over_seeds_with_its_band(browser: Browser) -> None:
    query = "&".join(f"runs=seeds%2Fcountdown-{seed}" for seed in range(3))
    told = browser.get(f"/api/compare?{query}&runs=nobody&names=rollout/reward")
    assert told["unknown"] == ["nobody"]
    (group,) = told["groups"]
    values = np.array([[metrics_of(v, seed)["rollout/reward"] for v in range(1, 13)] for seed in range(3)])
    half = 4.303 * values.std(axis=0, ddof=1) / math.sqrt(3)
    curve = group["series"]["rollout/reward"]
    assert curve["mean"] == pytest.approx(values.mean(axis=0))
    assert curve["low"] == pytest.approx(values.mean(axis=0) - half)
    assert curve["high"] == pytest.approx(values.mean(axis=0) + half)
    assert curve["num"] == [3] * 12


def test_a_band_counts_the_runs_that_have_a_version() -> None:
    told = band([{1: 1.0, 2: 3.0}, {1: 1.0}, {1: math.nan, 3: 2.0}])
    assert told["policy_version"] == [1, 2, 3]
    assert told["num"] == [2, 1, 1]
    assert told["mean"] == [1.0, 3.0, 2.0]
    assert told["low"] == [1.0, None, None]
    assert len(band([dict.fromkeys(range(10000), 1.0)], 300)["mean"]) <= 300


def test_the_account_adds_up_or_says_by_how_much_not(browser: Browser) -> None:
    told = browser.run(RUN, "account")
    columns = told["columns"]
    assert columns == {name: metrics_of(12, 0)[f"account/{name}"] for name in columns}
    assert told["difference"] == columns["started"] - sum(value for name, value in columns.items() if name != "started")
    assert told["balanced"] == (told["difference"] == 0)
    assert told["failed_by_kind"] == {f"{kind}/{reason}": n + 1 for n, (kind, reason, _) in enumerate(FAILURES)}
    assert told["series"]["started"] == [metrics_of(v, 0)["account/started"] for v in told["series"]["policy_version"]]


def test_environments_by_task_and_difficulty_and_failures_with_traceback(browser: Browser) -> None:
    told = browser.run(RUN, "environments")
    (env,) = told["by_env"]
    num_failed = sum(range(1, len(FAILURES) + 1))
    assert (env["env_id"], env["failed"]) == ("rollcage/Countdown-v0", num_failed)
    assert told["by_task"][0]["task_id"] == "train/1"  # where the failures are
    task = next(row for row in told["by_task"] if row["task_id"] == "train/0")
    expected = [episode(number, 0)["success"] for number in range(0, 20, 6)]
    assert task["success"] == pytest.approx(np.mean(expected))
    assert told["by_difficulty"] == [
        {"upper": "0.25", "num": 168.0, "trained": 144, "filtered": 24, "failed": 0, "stale": 0, "late": 0}
    ]
    raised = next(group for group in told["failures"] if group["reason"] == "env_raised")
    assert raised["messages"][0]["message"] == "ValueError: the lake has thawed"
    assert raised["messages"][0]["traceback"] == TRACEBACK
    assert [group["count"] for group in told["failures"]] == [5, 4, 3, 2, 1]


def test_an_episode_is_found_shown_whole_and_can_be_played_again(browser: Browser) -> None:
    page = browser.run(RUN, "trajectories?failure=model&limit=2&sort=return")
    assert page["total"] == 4
    assert len(page["trajectories"]) == 2
    key = browser.run(RUN, "trajectories?task_id=train%2Fannotated")["trajectories"][-1]["key"]
    told = browser.run(RUN, f"trajectories/{key}")
    assert told["trajectory"]["annotations"]["id"] == "30000.0"
    assert len(told["siblings"]) == 2
    assert told["replay"].startswith("rollcage replay ")
    assert told["replay"].endswith("--trajectory 30000.0")


def test_pipeline_events_evaluations_and_the_rest(browser: Browser) -> None:
    timeline = browser.run(RUN, "timeline")
    assert timeline["total"] == 7 * NUM_UPDATES
    assert sum(timeline["shares"]["learner"].values()) == pytest.approx(1.0, abs=0.1)
    assert len(browser.run(RUN, "timeline?start_s=1003&end_s=1020&max_spans=7")["spans"]) == 7
    gauges = browser.run(RUN, "gauges?names=engine_live_requests")["gauges"]
    assert set(gauges) == {"engine_live_requests{engine=0}", "engine_live_requests{engine=1}"}
    assert browser.run(RUN, "histograms")["histograms"]["publish_seconds"]["count"] == NUM_UPDATES
    assert browser.run(RUN, "evaluations")["evaluations"][0]["success_rate"] == 0.71
    events = browser.run(RUN, "events?kinds=sample_failed&limit=3")
    assert (events["total"], len(events["events"])) == (15, 3)
    assert {rule["state"] for rule in browser.run(RUN, "alerts")["rules"]} <= {"ok", "firing", "unknown"}
    assert browser.run(RUN, "doctor")["verdict"]
    assert browser.run(RUN, "status")["num_trajectories"] == 20 + 15 + 3
    assert browser.get("/api")["actions"] is False


def test_the_server_tells_prometheus_how_it_does_itself(browser: Browser) -> None:
    answer = browser.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    for name in (b"process_resident_memory_bytes", b"rollcage_disk_free_bytes"):
        assert b"\n" + name + b" " in answer.body


def messages(browser: Browser, path: str, wait_s: float) -> Iterator[tuple[str, Any]]:
    """Yield what a stream says, for so long."""
    connection = http.client.HTTPConnection("127.0.0.1", browser.port, timeout=5)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.headers["content-type"].startswith("text/event-stream")
        ends_s, kind = time.monotonic() + wait_s, ""
        while time.monotonic() < ends_s:
            line = answer.readline().decode().rstrip("\n")
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                yield kind, json.loads(line[6:])
            elif not line and not kind:
                return
    except TimeoutError:
        return
    finally:
        connection.close()


def test_changes_are_told_at_most_twice_a_second_and_the_backlog_is_bounded(tmp_path: Path) -> None:
    folder = tmp_path / "live"
    write_config(folder, seed=0, num_updates=100)
    rows = RunFolder(folder)
    rows.event("start", resumed_from=None)
    with serving(tmp_path) as browser:
        told = messages(browser, "/api/stream?run=live", 4.0)
        kind, first = next(told)
        assert (kind, first["status"]["policy_version"], first["changed"]) == ("change", 0, {})
        begin_s = time.monotonic()
        for version in range(1, 3):
            for _ in range(80):
                rows.event("checkpoint", path="p", policy_version=version)
            write_update(rows, version)
            _, message = next(told)
            assert message["status"]["policy_version"] == version
            assert message["changed"]["events"] == 80
            assert len(message["events"]) == stream.MAX_ROWS
            assert message["metrics"][-1]["policy_version"] == version
        assert time.monotonic() - begin_s >= 2 * stream.PERIOD_S - 0.1
        for number in range(1000):  # more than is read for one message: passed over
            rows.event("checkpoint", path=f"step-{number}", policy_version=3)
        assert next(told)[1]["changed"]["events"] <= stream.MAX_READ
        rows.event("finished", policy_version=3)
        assert [event["event"] for event in next(told)[1]["events"]] == ["finished"]
        told.close()
        assert next(messages(browser, "/api/stream", 2.0))[0] == "runs"
        assert browser.ask("GET", "/api/stream?run=nobody").status == 404
        rows.close()


def test_a_server_with_open_streams_ends_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as browser:
        told = messages(browser, "/api/stream", 20.0)
        next(told)
        begin_s = time.monotonic()
    assert time.monotonic() - begin_s < 3.0
    told.close()
