"""`rollcage bench trl`: what is asked of both trainers, and the page; TRL itself is not a part of the tests."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rollcage.benchmarks import trl_comparison
from rollcage.benchmarks.trl_trainer import Setting, Work, as_argument
from rollcage.trainer.train_arguments import parse_train


def test_runs_in_turns_with_a_seed_for_each_pair_and_the_ratio_is_the_median_of_pairs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    order: list[tuple[str, int]] = []

    def theirs(work: Work, setting: Setting) -> dict[str, Any]:
        order.append(("trl", work.seed))
        return {"trajectories_per_s": 100.0, "reward": 0.2, "generation_share": 0.4, "version": "1.0"}

    def ours(work: Work, async_ratio: float, folder: Path) -> dict[str, Any]:
        order.append(("rollcage", work.seed))
        return {"trajectories_per_s": [150.0, 400.0, 200.0][work.seed], "reward": 0.3, "train_share": 0.9}

    monkeypatch.setattr(trl_comparison, "_run_trl", theirs)
    monkeypatch.setattr(trl_comparison, "_run_ours", ours)
    monkeypatch.setitem(sys.modules, "trl", ModuleType("trl"))
    assert trl_comparison.main(["--repetitions", "3", "--output", str(tmp_path)]) == 0
    assert order == [(name, seed) for seed in range(3) for name in ("trl", "rollcage")]
    page = capsys.readouterr().out
    assert "**2.00 times as many trajectories a second** (median of 3 pairs, 1.50 to 4.00)" in page
    assert "| rollcage | 200.0 (150.0 to 400.0) | 0.300 | 90% of the time trains |" in page
    assert (tmp_path / "trl.md").read_text() == page
    assert len(json.loads((tmp_path / "trl.json").read_text())["rollcage"]) == 3


def test_our_run_is_a_command_that_exists_and_trl_gets_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], environment: dict[str, str]) -> str:
        commands.append(command)
        return 'noise\n{"trajectories_per_s": 1.0}\n'

    monkeypatch.setattr(trl_comparison, "_run", run)
    monkeypatch.setattr(trl_comparison, "read_metrics", lambda folder: [])
    work = Work(groups=16, tokens=24, updates=3, seed=2)
    with pytest.raises(IndexError):  # the run that did not take place left no metrics
        trl_comparison._run_ours(work, 1.0, Path("nowhere"))
    config = parse_train(commands[0][4:]).config
    assert config is not None
    assert (config.rollout.num_groups, config.rollout.group_size, config.seed) == (16, 8, 2)
    assert (config.sampling.max_new_tokens, config.num_updates, config.learner.lr) == (24, 4, work.lr)
    assert not config.learner.mask_cut
    trl_comparison._run_trl(work, Setting(micro_batch=64))
    given = json.loads(commands[1][-1])
    assert (Work(**given["work"]), Setting(**given["setting"])) == (work, Setting(micro_batch=64))
    assert commands[1][-1] == as_argument(work, Setting(micro_batch=64))
