"""`rollcage train frozenlake-small` for real, at a tiny size: episodes of several turns through the whole pipeline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollcage.__main__ import main
from rollcage.monitor.run_folder import read_metrics, read_rows

TINY = [
    *("--rollout.num-groups", "4"),
    *("--rollout.group-size", "4"),
    *("--rollout.num-slots", "16"),
    *("--engine.max-batch-size", "16"),
    *("--engine.parked-prefixes", "16"),
    *("--eval.num-tasks", "16"),
    *("--num-updates", "2"),
]


@pytest.mark.timeout(300)
def test_the_preset_trains_on_whole_episodes_and_evaluates_before_and_after(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "rollcage", "train", "frozenlake-small", *TINY, "--out", str(run)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stderr
    metrics = read_metrics(run)
    assert [row["policy_version"] for row in metrics] == [1, 2]
    for row in metrics:
        assert row["rollout/turns"] > 1.5
        assert row["rollout/splits"] == 0, "an episode is one sequence, however many turns it has"
        assert 5.5 < row["rollout/sampled_tokens"] / row["rollout/turns"] < 6.5, "four cells, a move, the end"
        assert row["rollout/staleness_max"] <= 1
        assert row["learner/logprob_gap_mean"] < 0.05, "sampler and trainer agree about every turn"
        assert row["learner/grad_norm"] > 0
        assert row["account/failed"] == 0
    evaluations = {row["when"]: row for row in read_rows(run, "evaluations")}
    assert set(evaluations) == {"before", "after"}
    assert all(row["num_scored"] == 16 for row in evaluations.values())

    assert main(["eval", "rollcage/FrozenLake-v0", "--policy", str(run), "--num-tasks", "8", "--json"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["num_scored"] == 8
