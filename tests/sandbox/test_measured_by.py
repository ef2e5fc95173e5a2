"""Managers that are opened out of sight, by environments, tell their metrics to whoever listens."""

from pathlib import Path
from typing import Any

import pytest

from rollcage.monitor.metrics.prometheus import PrometheusRecorder
from rollcage.monitor.run_folder import RunFolder
from rollcage.monitor.store import RunReader
from rollcage.recorder import NullRecorder
from rollcage.sandbox import SandboxSpec, SyncSandboxes
from rollcage.sandbox.opening import measured_by


class Names(NullRecorder):
    def __init__(self) -> None:
        self.told: set[str] = set()

    def histogram(self, name: str, value: float, **labels: str) -> None:
        self.told.add(name)


def use_one(folder: Path) -> None:
    with SyncSandboxes(folder=folder, endpoints=("process:",)) as sandboxes:
        box = sandboxes.create(SandboxSpec())
        assert box.exec("true").exit_code == 0
        box.delete()


def test_a_runs_sandboxes_are_in_its_folder_and_under_its_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollcage.monitor.recorders.several import Several

    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text('{"command": "", "config": {"rollout": {}}}')
    prometheus = PrometheusRecorder(strict=True)
    run: Any = Several(RunFolder(folder), [prometheus])
    with measured_by(run):
        use_one(tmp_path / "sandboxes")
    run.close()
    shown, _ = prometheus.exposition()
    assert b'rollcage_sandbox_transitions_total{state="READY"} 1.0' in shown
    assert b"rollcage_sandbox_exec_seconds_count 1.0" in shown
    with RunReader(folder) as reader:
        assert reader.histograms()["sandbox_exec_seconds"]["count"] == 1
        at_s, values = reader.gauges()["sandboxes{host=process:,state=READY}"]
        assert values.tolist() == [1, 0]
        assert reader.time_range() == (at_s[0], at_s[-1]) or at_s[-1] - at_s[0] < 60.0


def test_afterwards_nobody_is_told(tmp_path: Path) -> None:
    names = Names()
    with measured_by(names):
        pass
    use_one(tmp_path / "sandboxes")
    assert names.told == set()
