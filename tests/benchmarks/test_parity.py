"""Learning parity: which runs are wanted, and what is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollcage.benchmarks.parity import is_finished, main, make_plan, train, wanted
from rollcage.benchmarks.parity_report import (
    Cell,
    Outcome,
    Plan,
    differences,
    format_report,
    half_width,
    seconds_to,
    time_to_equal_success,
)
from rollcage.errors import UserError


def plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "losses": ["tis", "topr"],
        "alphas": [8, 0, 2],
        "settle": [2],
        "seeds": (2, 4),
        "half_width": 2.0,
        "preset": "countdown-small",
        "arguments": ["--num-updates=3"],
    }
    return make_plan(**{**fields, **changes})


def outcome(loss: str, alpha: float, seed: int, after: float, seconds: float = 10.0) -> Outcome:
    curve = [(seconds * update, after * update / 10) for update in range(1, 11)]
    return Outcome(Cell(loss, alpha, seed), 0.2, after, 2048, 10 * seconds, alpha / 2, alpha, curve, {"ess": 0.9})


def test_every_cell_is_run_at_first_then_only_what_is_not_settled() -> None:
    first = wanted(plan(), 0, [])
    assert first == [Cell(loss, alpha, 0) for loss in ("tis", "topr") for alpha in (0, 2, 8)]
    outcomes = [outcome(loss, 0, seed, 0.7) for loss in ("tis", "topr") for seed in (0, 1)]
    outcomes += [outcome("tis", 2, 0, 0.701), outcome("tis", 2, 1, 0.699)]  # +0.1 and -0.1 points: half-width 1.27
    outcomes += [outcome("topr", 2, 0, 0.75), outcome("topr", 2, 1, 0.69)]  # +5 and -1 points
    assert half_width(differences(outcomes, "tis", 2)) == pytest.approx(12.706 * 0.1, rel=1e-3)
    assert wanted(plan(), 2, outcomes) == [Cell("topr", 0, 2), Cell("topr", 2, 2)], "and alpha 8 is not to be settled"
    assert wanted(plan(half_width=1.0), 2, outcomes) == [
        Cell(loss, alpha, 2) for loss in ("tis", "topr") for alpha in (0, 2)
    ]
    assert wanted(plan(seeds=(1, 4)), 1, outcomes[:1]) != [], "one seed settles nothing"


def test_differences_are_between_runs_of_the_same_loss_and_seed() -> None:
    outcomes = [
        outcome("tis", 0, 0, 0.70),
        outcome("tis", 2, 0, 0.72),
        outcome("tis", 2, 1, 0.50),  # its synchronous run is missing
        outcome("topr", 0, 1, 0.10),
        outcome("tis", 0, 3, 0.60),
        outcome("tis", 2, 3, 0.57),
    ]
    assert differences(outcomes, "tis", 2) == pytest.approx([2.0, -3.0])


def test_time_to_equal_success_is_told_by_the_smoothed_curve() -> None:
    curve = [(1.0, 0.0), (2.0, 1.0), (3.0, 0.0), (4.0, 0.5), (5.0, 0.5), (6.0, 0.5), (7.0, 0.5)]
    assert seconds_to(curve, 0.4) == 5.0  # the first five: mean 0.4; a single success at 2 s does not count
    assert seconds_to(curve, 0.51) is None
    outcomes = [outcome("tis", 0, 0, 0.7, seconds=10), outcome("tis", 2, 0, 0.7, seconds=4)]
    # the synchronous run ends at the mean of 0.6 to 1.0 of 0.7; 0.9 of that is reached after its tenth update
    assert time_to_equal_success(outcomes, "tis", 0) == [100.0]
    assert time_to_equal_success(outcomes, "tis", 2) == [40.0]


def test_the_report_tells_difference_verdict_and_staleness() -> None:
    outcomes = [outcome(loss, alpha, seed, 0.7) for loss in ("tis",) for alpha in (0, 2) for seed in (0, 1)]
    outcomes += [outcome("tis", 8, 0, 0.6), outcome("tis", 8, 1, 0.6)]
    report = format_report(plan(), ["--min-seeds", "2"], outcomes)
    assert "| tis | 2 | 2 | 20.0% | 70.0% | +0.0 (+0.0 to +0.0) | yes | 100 | 1.00 (2) | 0.900 |" in report
    assert "| tis | 8 | 2 | 20.0% | 60.0% | -10.0 (-10.0 to -10.0) | no | not reached | 4.00 (8) | 0.900 |" in report
    assert "topr" not in report, "nothing of what was not run"


def test_a_plan_needs_the_synchronous_run() -> None:
    with pytest.raises(UserError, match="needs 0"):
        plan(alphas=[2, 8])
    with pytest.raises(UserError, match="--min-seeds 5 is above --max-seeds 4"):
        plan(seeds=(5, 4))


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    cell = Cell("tis", 2, 0)
    folder = cell.folder(tmp_path)
    folder.mkdir()
    assert not is_finished(folder)
    (folder / "config.json").write_text("{}")
    assert not is_finished(folder)
    folder.with_name(folder.name + ".json").write_text(json.dumps(["another", "--num-updates=9"]))
    with pytest.raises(UserError, match="holds a run with other arguments"):
        train(cell, plan(), folder)


def test_reporting_starts_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--report", "--runs", str(tmp_path / "none"), "--output", str(tmp_path / "page")]) == 0
    assert "| loss | alpha |" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
    assert (tmp_path / "page" / "parity.md").is_file()
