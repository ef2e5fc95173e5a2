"""`rollcage bench calibration`: runs that differ in how they were scheduled predict each other's throughput."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.trainer.simulation.recorded_run import record

from rollcage.benchmarks.throughput.calibration import main
from rollcage.errors import UserError
from rollcage.trainer.engines.simulated import Speed
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.simulation.draws import Empirical, Gaussian, Lognormal
from rollcage.trainer.simulation.environment import EnvModel
from rollcage.trainer.simulation.model import Cluster, Workload

ASYNC = RolloutConfig(num_groups=4, group_size=8, num_slots=64, async_ratio=1)
CONFIGS = {
    "sync": replace(ASYNC, mode="sync", async_ratio=0, num_slots=32),
    "one": ASYNC,
    "two": replace(ASYNC, async_ratio=2, num_slots=48),
}


def test_each_run_predicts_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = EnvModel(turns=Empirical([1, 2, 3, 3]), turn_s=Gaussian(1, 1), reset_s=Gaussian(1, 1))
    cluster = Cluster(num_slots=64, speed=Speed(0.01, load_token_s=0.0003), sample_s=0.06)
    for name, config in CONFIGS.items():
        record(tmp_path / name, Workload(Lognormal(30, 0.3), env), cluster, config, num_updates=8)
    runs = [str(tmp_path / name) for name in CONFIGS]
    assert main([*runs, "--seeds", "2", "--json", "--output", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    rows = json.loads(told.splitlines()[-1])
    assert {(row["fitted"], row["predicted"]) for row in rows} == {
        (f"{fitted}, 4 x 8", f"{predicted}, 4 x 8")
        for fitted in ("sync", "ratio 1, 64 slots", "ratio 2, 48 slots")
        for predicted in ("sync", "ratio 1, 64 slots", "ratio 2, 48 slots")
        if fitted != predicted
    }
    assert [ratio for row in rows for ratio in row["ratios"]] == pytest.approx([1.0] * 6, abs=0.15)
    measured = {row["predicted"]: row["measured"] for row in rows}
    assert measured["ratio 1, 64 slots, 4 x 8"] > 1.5 * measured["sync, 4 x 8"]  # they are no runs of one speed
    page = (tmp_path / "out" / "calibration.md").read_text()
    assert "Of 6 kinds of pairs, 6 are within 15% by their medians; of all 6 pairs, 6." in page


def test_one_run_predicts_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two runs at least"):
        main([str(tmp_path)])
