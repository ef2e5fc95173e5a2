"""``rollcage bench rhythm-overhead``: what is told of updates that took a known time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rollcage.benchmarks.learning import rhythm_overhead
from rollcage.benchmarks.learning.rhythm_overhead import main
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.rhythm.config import RhythmConfig

clock = [0.0]
"""The CPU time."""
calls: list[tuple[int, int]] = []


class TimedUpdate:
    """Takes a second without credit, 0.05 s more with it, and half as much again where it picks heads each time."""

    def __init__(self, rhythm: RhythmConfig) -> None:
        self._rhythm = rhythm

    def begin(self, batch: Batch, policy_version: int) -> None:
        calls.append((batch.loss_mask.shape[1], self._rhythm.heads_every))
        self._policy_version = policy_version

    def train(self) -> tuple[None, dict[str, float]]:
        slow_s = 5.0 if self._policy_version == 0 else 0.0  # the first update warms up
        clock[0] += {"none": 0.5, "global": 0.52}[self._rhythm.credit] + slow_s
        if self._rhythm.credit == "none":
            return None, {"seconds": 1.0 + slow_s}
        return None, {"seconds": (1.05 if self._rhythm.heads_every == 0 else 1.5) + slow_s, "rhythm_seconds": 0.04}


def timed_updates(configs: Mapping[str, LearnerConfig]) -> dict[str, TimedUpdate]:
    return {name: TimedUpdate(config.rhythm) for name, config in configs.items()}


def test_shares_are_told_by_length_of_interleaved_updates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls.clear()
    monkeypatch.setattr(rhythm_overhead, "make_updates", timed_updates)
    monkeypatch.setattr("time.process_time", lambda: clock[0])
    report = tmp_path / "overhead.md"
    arguments = ["--lengths", "10", "30", "--prompt", "6", "--tokens", "400", "--repetitions", "2"]
    assert main([*arguments, "--credit", "global", "--report", str(report)]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    for row, (length, num_rows) in zip(result["lengths"], [(10, 24), (30, 8)], strict=True):
        assert (row["length"], row["num_rows"]) == (length, num_rows)
        assert row["heads known adds"] == pytest.approx([0.05] * 3)
        assert row["heads of every batch adds"] == pytest.approx([0.5] * 3)
        assert row["heads known adds CPU time"] == pytest.approx([0.04] * 3)
        assert row["reading"] == pytest.approx(0.04)
    none, known, anew = 50, 0, 1  # what heads_every says of them
    turns = (none, known, anew, known, anew, none, anew, none, known)
    assert calls == [(tokens, turn) for tokens in (16, 36) for turn in turns]
    shares = "+5.0 % (+5.0 to +5.0) | +4.0 % (+4.0 to +4.0) | 4.0 % | +50.0 % (+50.0 to +50.0) |"
    assert f"| 30 | 8 | 1.000 | {shares}" in report.read_text()
