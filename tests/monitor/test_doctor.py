"""What the doctor says of runs that went wrong, each in its own way, and of one that went well."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.monitor.alerts.test_rules import healthy
from tests.monitor.pages.recorded_run import HOSTILE, TRACEBACK, write_config, write_run

from rollcage.__main__ import main
from rollcage.monitor.doctor import diagnose, in_words
from rollcage.monitor.run_folder import RunFolder
from rollcage.monitor.store import RunReader

NUM_UPDATES = 30


class Patient:
    """A run folder that is written by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_config(folder, seed=0, num_updates=NUM_UPDATES)
        self.rows = RunFolder(folder)
        self.rows.event("start", resumed_from=None)

    def trained(self, num: int = NUM_UPDATES, **changed: float) -> None:
        for version, row in enumerate(healthy(num), 1):
            self.rows.write("metrics", {**row, **changed, "policy_version": version})

    def failed(self, num: int, kind: str, reason: str, message: str) -> None:
        for number in range(num):
            self.rows.event(
                "sample_failed",
                task_id="train/1",
                sample_id=[number, 0],
                kind=kind,
                reason=reason,
                message=message,
                attempt=0,
            )

    def evaluated(self, when: str, rate: float) -> None:
        row = {"when": when, "name": "held out", "success_rate": rate, "success_ci95": [rate - 0.05, rate + 0.05]}
        self.rows.write("evaluations", row)

    def diagnosis(self) -> dict[str, Any]:
        self.rows.close()
        with RunReader(self.folder) as reader:
            return diagnose(reader)


@pytest.fixture
def patient(tmp_path: Path) -> Patient:
    return Patient(tmp_path / "patient")


def finding(diagnosis: dict[str, Any], rule: str) -> dict[str, Any]:
    (found,) = [it for it in diagnosis["findings"] if it["rule"] == rule]
    assert set(found) == {"rule", "severity", "title", "what", "why", "try"}
    return dict(found)


def test_a_run_that_went_well(patient: Patient) -> None:
    patient.trained()
    patient.evaluated("before", 0.2)
    patient.evaluated("after", 0.7)
    patient.rows.event("finished", policy_version=NUM_UPDATES)
    told = patient.diagnosis()
    assert told["healthy"]
    assert told["findings"] == []
    assert told["verdict"] == "The run is finished, 30 of 30 updates made. Nothing wrong was found."


def test_a_run_that_was_killed_and_one_that_failed(tmp_path: Path) -> None:
    dead = Patient(tmp_path / "dead")
    dead.trained(10)
    (dead.folder / "lock").touch()
    told = dead.diagnosis()
    assert not told["healthy"]
    assert "made 10 of 30 updates" in finding(told, "dead")["what"]
    assert f"--resume {dead.folder}" in finding(told, "dead")["try"][0]
    dead.rows.event("stopped")
    assert "somebody ended it after 10 of 30" in finding(dead.diagnosis(), "stopped")["what"]
    failed = Patient(tmp_path / "failed")
    failed.trained(3)
    failed.rows.event("failed", error="no engine replica is left; api_key=hush", policy_version=3)
    told = failed.diagnosis()
    assert finding(told, "failed")["what"] == "no engine replica is left; api_key=***"
    assert told["verdict"].endswith("the run has failed.")


def test_failures_by_kind_with_the_most_frequent_message(patient: Patient) -> None:
    patient.trained()
    patient.failed(300, "infra", "env_raised", TRACEBACK)
    patient.failed(10, "infra", "env_raised", "something else")
    patient.failed(5, "model", "context_full", "too long")
    told = patient.diagnosis()
    raised = finding(told, "failures infra/env_raised")
    assert raised["severity"] == "warning"
    assert "310 of 3000 samples (10.3%)" in raised["what"]
    assert "ValueError: the lake has thawed (300 times)" in raised["what"]
    assert finding(told, "failures model/context_full")["severity"] == "info"


@pytest.mark.parametrize("message", ["CUDA out of memory. Tried to allocate", "Memory ran out.", "MemoryError"])
def test_memory_that_ran_out_is_named(patient: Patient, message: str) -> None:
    patient.trained()
    patient.failed(1, "infra", "env_died", message)
    assert message.split(".")[0] in finding(patient.diagnosis(), "out_of_memory")["what"]


def test_no_variance_and_messages_that_are_cut(patient: Patient) -> None:
    patient.trained(**{"rollout/mixed_groups": 0.01, "rollout/cut_by_length": 1.0})
    told = patient.diagnosis()
    assert told["healthy"]
    assert "1%" in finding(told, "no_variance")["what"]
    assert "100%" in finding(told, "cut_by_length")["what"]
    assert "sampling.max_new_tokens" in finding(told, "cut_by_length")["try"][0]


def test_tasks_that_starve(patient: Patient) -> None:
    for version, row in enumerate(healthy(NUM_UPDATES), 1):
        patient.rows.counter("samples_by_duration_s", 90, upper="4", outcome="trained")
        patient.rows.counter("samples_by_duration_s", 1, upper="64", outcome="trained")
        patient.rows.counter("samples_by_duration_s", 29, upper="64", outcome="failed")
        patient.rows.metrics(row, policy_version=version)
    starved = finding(patient.diagnosis(), "starved duration_s 64")
    assert "3% of their 900 samples" in starved["what"]


def test_a_learner_that_waits_and_training_that_made_it_worse(patient: Patient) -> None:
    patient.trained(**{"time/wait_s": 9.0, "time/train_s": 1.0, "time/publish_s": 0.0})
    patient.evaluated("before", 0.7)
    patient.evaluated("after", 0.2)
    told = patient.diagnosis()
    assert "90%" in finding(told, "learner_waits")["what"]
    assert finding(told, "worse")["severity"] == "critical"
    assert told["findings"][0]["rule"] == "worse"


def test_the_command_says_it_in_words_and_hostile_text_commands_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run", num_updates=20, num_episodes=4)
    assert main(["monitor", "doctor", str(tmp_path / "run")]) == 1  # an engine died of memory
    text = capsys.readouterr().out
    assert "Memory ran out" in text
    assert "the lake has thawed" in text
    assert "\x1b" not in text + in_words({"verdict": HOSTILE, "findings": []})
    assert main(["monitor", "doctor", str(tmp_path / "run"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["healthy"] is False
    assert main(["monitor", "doctor", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err


def test_top_shows_the_essentials_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "run", num_updates=20, num_episodes=4)
    assert main(["top", str(tmp_path / "run"), "--once"]) == 0
    text = capsys.readouterr().out
    for part in ("update 20 of 20", "reward", "entropy", "samples: started", "failed 3 x infra/engine_error", "▁"):
        assert part in text
    assert "\x1b" not in text


def test_top_follows_a_run_until_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import fcntl
    import threading

    folder = tmp_path / "run"
    write_config(folder, seed=0, num_updates=3)
    rows = RunFolder(folder)
    rows.event("start", resumed_from=None)
    held = (folder / "lock").open("a")
    fcntl.flock(held, fcntl.LOCK_EX)

    def train() -> None:
        for version, row in enumerate(healthy(3), 1):
            rows.metrics(row, policy_version=version)
        rows.close()
        held.close()

    training = threading.Timer(0.5, train)
    training.start()
    assert main(["top", str(folder), "--every", "0.2"]) == 0
    training.join()
    assert "update 3 of 3" in capsys.readouterr().out
