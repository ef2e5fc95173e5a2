"""The environment benchmark, on tiny sizes: everyone does the work they are said to do, and the report says so."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from rollcage.benchmarks.envs import attacks
from rollcage.benchmarks.envs.bare import make_bare
from rollcage.benchmarks.envs.bare import score as score_bare
from rollcage.benchmarks.envs.contenders import scorers, tagged
from rollcage.benchmarks.envs.measure import Contender, interleave, summarize
from rollcage.benchmarks.envs.problems import load_problems, near_miss, write_rows
from rollcage.benchmarks.envs.speed import SECTIONS, main
from rollcage.envs.countdown.env import judge
from rollcage.errors import UserError


def test_half_of_the_answers_are_right_and_the_others_near_misses(tmp_path: Path) -> None:
    problems = load_problems(None, 100)
    assert sum(problem.right for problem in problems) == 50
    for problem in problems:
        outcome = judge(tagged(problem.answer), problem.numbers, problem.target)[0]
        assert outcome == ("right" if problem.right else "wrong_value")
    write_rows(problems, tmp_path / "rows.jsonl")
    again = load_problems(tmp_path / "rows.jsonl", 100)
    assert [(p.numbers, p.target) for p in again] == [(p.numbers, p.target) for p in problems]


def test_a_near_miss_is_another_value() -> None:
    assert near_miss("(3+5)*10", 80) == "(3-5)*10"
    assert near_miss("2*2", 4) == "2-2"  # 2+2 would be right


def test_the_bare_environment_is_honest() -> None:
    """It scores as ours does, so the comparison is of the same work."""
    for problem in load_problems(None, 200):
        assert score_bare(tagged(problem.answer), problem.numbers, problem.target) == float(problem.right)
    bad = [("2.5*10", [2, 5, 10]), ("5/(3-3)", [5, 3, 3]), ("3 5", [3, 5]), ("(3+5", [3, 5]), ("3+5)", [3, 5])]
    for answer, numbers in bad:
        assert score_bare(tagged(answer), numbers, 8) == 0.0
    env = make_bare([([3, 5], 8)])
    assert env.reset(seed=0) == ("Make 8 from [3, 5]. Answer in <answer> </answer> tags.", {"index": 0})
    assert env.step("<answer>3+5</answer>")[1:4] == (1.0, True, False)


def test_everyone_takes_turns_and_is_closed() -> None:
    calls: list[str] = []
    closed: list[str] = []

    def contender(name: str, seconds: float, count: int) -> Contender:
        def work() -> None:
            calls.append(name)
            time.sleep(seconds)

        return Contender(name, work, count, lambda: closed.append(name))

    rates = interleave([contender("fast", 0.002, 4), contender("slow", 0.01, 1)], repetitions=5, seconds=0.01)
    assert sorted(closed) == ["fast", "slow"]
    turns = [name for i, name in enumerate(calls[2:], start=2) if name != calls[i - 1] or i == 2]
    assert len(turns) >= 6  # interleaved, not one after the other
    rows = summarize(rates)
    assert [row["name"] for row in rows] == ["fast", "slow"]
    assert rows[0]["ratio"] == 1.0
    assert rows[1]["ratio"] == pytest.approx(20, rel=0.5)
    assert 20 < rows[1]["median_per_s"] <= 100


def test_ours_gives_bad_answers_nothing_and_the_limit_ends_what_does_not_end() -> None:
    results = [attacks.behaviour("rollcage", answer, numbers) for answer, numbers in attacks.CASES.items()]
    assert results == ["reward 1", "reward 0", "reward 0", "reward 0"]
    long = "1+" * 50_000 + "1"  # takes some 30 ms
    assert attacks.behaviour("rollcage", long, [1], limit_s=0.001) == "no result in 0.001 s"
    assert attacks.behaviour("no such package", "1", [1]) == "ended with exit code 1"


def test_scorers_agree_on_which_answers_are_right() -> None:
    for name, score in scorers([]).items():
        for problem in load_problems(None, 50):
            assert (score(problem) == 1.0) == problem.right, name


def test_the_command_measures_everything_and_writes_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shared_data: Path | None
) -> None:
    rows = [] if shared_data is None else ["--rows", str(shared_data / "countdown" / "countdown_3to4_test.jsonl")]
    sizes = ["--problems", "20", "--repetitions", "2", "--seconds", "0.001"]
    assert main(["--alone", *rows, *sizes, "--output", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result["rates"]) == set(SECTIONS)
    for section in result["rates"].values():
        assert all(row["min_per_s"] > 0 for row in section)
    assert result["wrong_rewards"] == {"rollcage": 0, "bare Gymnasium env": 0}
    assert result == json.loads((tmp_path / "envs.json").read_text())
    report = (tmp_path / "envs.md").read_text()
    for title in SECTIONS.values():
        assert f"\n## {title}\n" in report
    assert "| `2.5*10` | reward 0 |" in report


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(UserError, match="--problems must be at least 2"):
        main(["--problems", "1"])
    with pytest.raises(UserError, match="no such file"):
        main(["--rows", "absent.jsonl"])
