"""``rollcage bench rhythm-overhead``: what is told of updates that took a known time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollcage.benchmarks.learning import rhythm_overhead
from rollcage.benchmarks.learning.rhythm_overhead import main
from rollcage.trainer.learner.batch import Batch
from rollcage.trainer.learner.config import LearnerConfig

calls: list[tuple[int, int]] = []
cpu_s: list[float] = []
"""Of the learners' processes, which are numbered here."""


class TimedLearner:
    """Takes a second without credit, 0.05 s more with it, and half as much again where it picks heads each time."""

    def __init__(self, config: LearnerConfig) -> None:
        self._rhythm = config.rhythm
        self.pids = [len(cpu_s)]
        cpu_s.append(0.0)
        self._slow_s = 5.0  # the first update warms up

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        calls.append((-1, self._rhythm.heads_every))

    async def train(self, batch: Batch) -> dict[str, float]:
        calls.append((batch.loss_mask.shape[1], self._rhythm.heads_every))
        slow_s, self._slow_s = self._slow_s, 0.0
        cpu_s[self.pids[0]] += {"none": 0.5, "global": 0.52}[self._rhythm.credit]
        if self._rhythm.credit == "none":
            return {"seconds": 1.0 + slow_s}
        return {"seconds": (1.05 if self._rhythm.heads_every == 0 else 1.5) + slow_s, "rhythm_seconds": 0.04}


def test_shares_are_told_by_length_of_interleaved_updates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls.clear()
    cpu_s.clear()
    monkeypatch.setattr(rhythm_overhead, "DeepSpeedLearner", TimedLearner)
    monkeypatch.setattr(rhythm_overhead, "_cpu_seconds", lambda pids: sum(cpu_s[pid] for pid in pids))
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
    assert calls[:9] == [(16, n) for n in (none, known, anew, known, anew, none, anew, none, known)]
    assert len(calls[9:-3]) == 9
    assert sorted(calls[-3:]) == [(-1, known), (-1, anew), (-1, none)], "all are closed"
    shares = "+5.0 % (+5.0 to +5.0) | +4.0 % (+4.0 to +4.0) | 4.0 % | +50.0 % (+50.0 to +50.0) |"
    assert f"| 30 | 8 | 1.000 | {shares}" in report.read_text()
