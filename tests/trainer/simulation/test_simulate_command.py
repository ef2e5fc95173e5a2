"""``rollcage simulate``: a described cluster, a recorded run, and words that cannot be meant."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.simulation.recorded_run import record

from rollcage.errors import UserError
from rollcage.trainer.engines.simulated import Speed
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.simulation.cli import run_simulate
from rollcage.trainer.simulation.draws import Lognormal
from rollcage.trainer.simulation.model import Cluster, Workload

SMALL = [
    *("--gpus", "4", "--slots", "8", "--token-ms", "10", "--length", "100"),
    *("--train-gpu-s", "0.2", "--groups", "8", "--updates", "2"),
]


def simulated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run_simulate([*arguments, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_a_given_choice_is_predicted_and_a_higher_ratio_is_faster_and_staler(
    capsys: pytest.CaptureFixture[str],
) -> None:
    none, two = (simulated(capsys, *SMALL, "--train-gpus", "2", "--async-ratio", ratio) for ratio in ("0", "2"))
    assert two["samples_per_s"] > 1.2 * none["samples_per_s"]
    assert none["staleness"] == 0 < two["staleness"] <= two["staleness_max"] <= 2
    assert two["train_gpus"] == 2
    assert "reasons" not in two


def test_a_search_recommends_and_says_why_and_draws_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = simulated(capsys, *SMALL, "--plot", str(tmp_path / "plot.png"))
    assert result["speedup"] > 1
    assert {choice["train_gpus"] for choice in result["tried"]} >= {0, 1}
    assert any("async_ratio" in reason for reason in result["reasons"])
    assert (tmp_path / "plot.png").stat().st_size > 5000


def test_for_people_it_says_the_same_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_simulate([*SMALL, "--train-gpus", "1", "--async-ratio", "1", "--turns", "2", "--env-s", "1", "1"]) == 0
    page = capsys.readouterr().out
    assert "async_ratio 1" in page
    assert "samples/s" in page
    assert "staleness" in page


def test_a_recorded_run_is_predicted_as_it_was_and_as_it_might_be(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cluster = Cluster(num_slots=16, speed=Speed(0.02), sample_s=0.05)
    config = RolloutConfig(num_groups=4, group_size=8, num_slots=32)
    record(tmp_path / "run", Workload(Lognormal(40)), cluster, config, num_updates=5)
    same = simulated(capsys, "--from", str(tmp_path / "run"))
    assert same["predicted_over_measured"] == pytest.approx(1, abs=0.15)
    assert same["async_ratio"] == 1
    more = simulated(capsys, "--from", str(tmp_path / "run"), "--replicas", "4", "--async-ratio", "2")
    assert more["samples_per_s"] > 1.5 * same["samples_per_s"]
    assert "predicted_over_measured" not in more


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--gpus 1", "leaves none to train"),
        ("--train-gpus 16", "--train-gpus must be between 0 and 15"),
        ("--replicas 2", "goes with --from"),
        ("--fail-stop 2", "must be between 0 and 1"),
        ("--train-gpus 0 --async-ratio 1", "must be 0 then"),
        ("--slow-replicas 3", "must be between 0 and 1"),
        ("--task-share 1.5", "must be between 0 and 1"),
        ("--length 0", "must be above 0"),
        ("--group-size 0", "at least 1"),
        ("--from nowhere", "not a run folder"),
        ("--lenght 3", "unrecognized arguments"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(arguments: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        run_simulate(arguments.split())
    assert "\n" not in str(refused.value)
