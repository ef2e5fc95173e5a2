"""Studies of paired runs: which runs are wanted, and what is made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollcage.benchmarks.learning.outcomes import (
    Outcome,
    differences,
    half_width,
    seconds_to,
    seconds_to_equal_success,
)
from rollcage.benchmarks.learning.paired import Plan, is_finished, main, make_plan, run_folder, train, wanted
from rollcage.benchmarks.learning.paired_report import format_report
from rollcage.benchmarks.learning.studies import STUDIES, Arm, chosen
from rollcage.errors import UserError
from rollcage.trainer.train_arguments import parse_train

SYNC, NEAR, FAR = "tis, alpha 0", "tis, alpha 2", "tis, alpha 8"


def plan(*arms: str, **changes: Any) -> Plan:
    fields: dict[str, Any] = {"seeds": (2, 4), "half_width": 2.0, "arguments": ["--num-updates=3"]}
    return make_plan("parity", arms, **{**fields, **changes})


def arm(name: str) -> Arm:
    return next(arm for arm in STUDIES["parity"]().arms if arm.name == name)


def outcome(name: str, seed: int, after: float, seconds: float = 10.0) -> Outcome:
    curve = [(seconds * update, after * update / 10) for update in range(1, 11)]
    return Outcome(name, seed, 0.2, after, 2048, 10 * seconds, 1.5, 2**30, 1.0, 2, curve, {"ess": 0.9})


def test_every_arm_is_run_at_first_then_only_what_is_not_settled() -> None:
    two = plan("tis, alpha 2", "tis, alpha 8", "topr, alpha 2")
    names = ["topr, alpha 0", "topr, alpha 2", SYNC, NEAR, FAR]
    assert [one.name for one in wanted(two, 0, [])] == names, "and what they are compared with"
    outcomes = [outcome(name, seed, 0.7) for name in (SYNC, "topr, alpha 0") for seed in (0, 1)]
    outcomes += [outcome(NEAR, 0, 0.701), outcome(NEAR, 1, 0.699)]  # +0.1 and -0.1 points: half-width 1.27
    outcomes += [outcome("topr, alpha 2", 0, 0.75), outcome("topr, alpha 2", 1, 0.69)]  # +5 and -1 points
    assert half_width(differences(outcomes, arm(NEAR))) == pytest.approx(12.706 * 0.1, rel=1e-3)
    more = [one.name for one in wanted(two, 2, outcomes)]
    assert more == ["topr, alpha 0", "topr, alpha 2"], "and alpha 8 is not to be settled"
    strict = plan("tis, alpha 2", "topr, alpha 2", half_width=1.0)
    assert len(wanted(strict, 2, outcomes)) == 4
    assert wanted(plan(seeds=(1, 4)), 1, outcomes[:1]) != [], "one seed settles nothing"


def test_differences_are_between_runs_of_the_same_seed() -> None:
    outcomes = [
        outcome(SYNC, 0, 0.70),
        outcome(NEAR, 0, 0.72),
        outcome(NEAR, 1, 0.50),  # the run that it is compared with is missing
        outcome("topr, alpha 0", 1, 0.10),
        outcome(SYNC, 3, 0.60),
        outcome(NEAR, 3, 0.57),
    ]
    assert differences(outcomes, arm(NEAR)) == pytest.approx([2.0, -3.0])


def test_time_to_equal_success_is_told_by_the_smoothed_curve() -> None:
    curve = [(1.0, 0.0), (2.0, 1.0), (3.0, 0.0), (4.0, 0.5), (5.0, 0.5), (6.0, 0.5), (7.0, 0.5)]
    assert seconds_to(curve, 0.4) == 5.0  # the first five: mean 0.4; a single success at 2 s does not count
    assert seconds_to(curve, 0.51) is None
    outcomes = [outcome(SYNC, 0, 0.7, seconds=10), outcome(NEAR, 0, 0.7, seconds=4)]
    # the other ends at the mean of 0.6 to 1.0 of 0.7; 0.9 of that is reached after the tenth update
    assert seconds_to_equal_success(outcomes, arm(NEAR)) == [40.0]


def test_a_run_that_falls_and_stays_down_has_collapsed() -> None:
    risen = outcome(SYNC, 0, 0.7)
    fallen = Outcome(**{**vars(risen), "curve": [*risen.curve, *((200.0 + i, 0.2) for i in range(5))]})
    assert not risen.has_collapsed
    assert fallen.has_collapsed


def test_the_report_tells_difference_collapse_and_memory() -> None:
    outcomes = [outcome(name, seed, 0.7) for name in (SYNC, NEAR) for seed in (0, 1)]
    outcomes += [outcome(FAR, 0, 0.6), outcome(FAR, 1, 0.6)]
    asked = plan()
    report = format_report(
        asked.study, asked.arms, asked.arguments, 2.0, "rollcage bench study parity", "Busy.", outcomes
    )
    assert (
        f"| {NEAR} | 2 | 20.0% | 70.0% | {SYNC} | +0.0 (+0.0 to +0.0) | yes | 0 | 100 | 1.50 s | 1024 MiB |" in report
    )
    assert f"| {FAR} | 2 | 20.0% | 60.0% | {SYNC} | -10.0 (-10.0 to -10.0) | yes | 0 | not reached |" in report
    assert "topr" not in report, "nothing of what was not run"
    assert "Busy." in report


def test_names_are_checked_before_anything_runs() -> None:
    with pytest.raises(UserError, match=r"no study 'party'.*parity"):
        make_plan("party", [], seeds=(None, 3), half_width=2.0, arguments=[])
    with pytest.raises(UserError, match="no arm 'tis, alpha 3'"):
        plan("tis, alpha 3")
    with pytest.raises(UserError, match="--min-seeds 5 is above --max-seeds 4"):
        plan(seeds=(5, 4))


@pytest.mark.parametrize("name", STUDIES)
def test_every_arm_is_a_run_that_can_be_asked_for(name: str, tmp_path: Path) -> None:
    study = STUDIES[name]()
    names = [one.name for one in study.arms]
    assert len({one.slug for one in study.arms}) == len(names)
    for number, one in enumerate(study.arms):
        assert not one.against or one.against in names[:number], "what an arm is compared with stands before it"
        parse_train([study.preset, *one.arguments, "--out", str(tmp_path)])
    assert chosen(study, []) == study.arms


def test_a_folder_with_another_run_is_refused(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "parity", arm(NEAR), 0)
    folder.mkdir(parents=True)
    assert not is_finished(folder)
    (folder / "config.json").write_text("{}")
    assert not is_finished(folder)
    folder.with_name(folder.name + ".json").write_text(json.dumps({"arguments": ["another"]}))
    with pytest.raises(UserError, match="holds a run with other arguments"):
        train(plan(), arm(NEAR), 0, folder)


def test_reporting_starts_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["parity", "--report", "--runs", str(tmp_path / "none"), "--output", str(tmp_path / "page")]) == 0
    assert "| run | seeds |" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()
    assert (tmp_path / "page" / "parity.md").is_file()
