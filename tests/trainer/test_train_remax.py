"""ReMax for real, through `rollcage train`: a greedy rollout beside each group is its baseline, and not trained on."""

import subprocess
import sys
from pathlib import Path

import pytest

from rollcage.monitor.run_folder import read_metrics


@pytest.mark.timeout(200)
def test_each_group_has_one_greedy_rollout_that_counts_as_filtered(tmp_path: Path) -> None:
    options = {
        "learner.advantage": "remax",
        "rollout.num-groups": "4",
        "rollout.group-size": "2",
        "rollout.num-slots": "12",
        "rollout.async-ratio": "0",
        "num-updates": "2",
        "eval.num-tasks": "0",
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "rollcage", "train", "countdown-small", "--rollout.greedy-baseline"]
    result = subprocess.run(
        [*command, *arguments, "--out", str(tmp_path / "run")], capture_output=True, text=True, timeout=180
    )
    assert result.returncode == 0, result.stderr
    metrics = read_metrics(tmp_path / "run")
    assert [row["policy_version"] for row in metrics] == [1, 2]
    for update, row in enumerate(metrics, start=1):
        assert row["rollout/num_samples"] == 4 * 2
        assert row["account/trained"] == update * 4 * 2
        assert (
            row["account/filtered"] == update * 4
        )  # the greedy ones: a batch is taken when all of its groups are whole
        assert row["account/failed"] == 0
        assert row["learner/logprob_gap_mean"] < 0.05
