"""`rollcage bench asynchrony`: what it measures of a run, and how it reports pairs of runs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from rollcage.benchmarks.throughput.slow_countdown import ENV_ID
from rollcage.benchmarks.throughput.wall import format_report, main, measure
from rollcage.envs import make

CHOSEN = {"attempts": 3, "latency": 1.0, "spread": 1.0, "groups": 8, "updates": 2}


def test_the_real_trainer_is_measured_in_both_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--repetitions", "1", "--updates", "1", "--groups", "1", "--attempts", "2", "--latency", "0.1"]
    runs = ["--spread", "0.1", "--slots", "16", "--runs", str(tmp_path / "runs"), "--output", str(tmp_path / "out")]
    assert main([*small, *runs]) == 0
    told = json.loads((tmp_path / "out" / "asynchrony.json").read_text())
    assert all(told[mode][0]["samples_per_s"] > 0 for mode in ("sync", "async"))
    assert told["sync"][0]["staleness"] == 0
    assert "times as fast" in capsys.readouterr().out == (tmp_path / "out" / "asynchrony.md").read_text()


def test_the_clock_starts_after_the_warm_up(tmp_path: Path) -> None:
    def row(version: int, elapsed_s: float) -> str:
        told = {"policy_version": version, "time/elapsed_s": elapsed_s, "rollout/num_samples": 64}
        more = {"rollout/sampled_tokens": 10.0, "rollout/turns": 2.0, "rollout/staleness": 1.0, "account/failed": 3}
        return json.dumps(told | more)

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "metrics.jsonl").write_text("\n".join([row(1, 100.0), row(2, 110.0), row(3, 132.0), ""]))
    measured = measure(tmp_path)
    assert measured["samples_per_s"] == pytest.approx(128 / 32)
    assert measured["tokens_per_s"] == pytest.approx(1280 / 32)
    assert (measured["turns"], measured["staleness"], measured["failed"]) == (2.0, 1.0, 3)


def test_the_ratio_is_the_median_of_the_pairs() -> None:
    def run(speed: float) -> dict[str, float]:
        rest = dict.fromkeys(("tokens_per_s", "turns", "staleness", "train_share", "failed"), 0.0)
        return {"samples_per_s": speed, **rest}

    results = {"sync": [run(2.0), run(1.0), run(4.0)], "async": [run(6.0), run(2.0), run(10.0)]}
    report = format_report(["--repetitions", "3"], results, CHOSEN)
    assert "**Asynchronous is 2.50 times as fast** (median of 3 pairs, 2.00 to 3.00)." in report
    assert "| sync | 2.00 (1.00 to 4.00) |" in report


def test_the_environment_takes_its_time() -> None:
    env = make(ENV_ID, mean_s=0.05, std_s=0.0)
    begin_s = time.monotonic()
    env.reset(seed=0)
    env.step("<answer>1</answer>")
    assert time.monotonic() - begin_s >= 0.1
