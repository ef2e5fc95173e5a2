"""`rollcage train` for real: engine, DeepSpeed learner, checkpoints, kill -9, resume (guarantees 1 to 6; T5, T10)."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

from rollcage.__main__ import main
from rollcage.monitor.run_folder import read_metrics, read_rows
from rollcage.monitor.store import RunReader
from rollcage.trainer.checkpoints import newest_checkpoint, read_state

SMALL = [
    "countdown-small",
    *("--rollout.num-groups", "4"),
    *("--rollout.group-size", "4"),
    *("--rollout.num-slots", "16"),
    *("--eval.num-tasks", "16"),
    *("--checkpoint-every", "2"),
]


def rollcage(*arguments: str | Path, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rollcage", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def wait_gone(processes: list[psutil.Process], timeout_s: float = 20.0) -> None:
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    assert not alive


@pytest.mark.timeout(400)
def test_a_run_trains_reports_and_leaves_a_checkpoint_that_eval_loads(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    result = rollcage("train", *SMALL, "--num-updates", "4", "--out", run)
    assert result.returncode == 0, result.stderr
    assert "success" in result.stderr  # live progress
    metrics = read_metrics(run)
    assert [row["policy_version"] for row in metrics] == [1, 2, 3, 4]
    for row in metrics:
        assert row["rollout/staleness_max"] <= 1  # freshness, at the preset's asynchronous ratio of 1
        assert row["learner/grad_norm"] == row["learner/grad_norm"]
        columns = ("trained", "filtered", "stale", "failed", "cancelled", "in_flight")
        assert row["account/started"] == sum(row[f"account/{column}"] for column in columns)
    # sampler and trainer see the same tokens and agree about their probabilities; staleness alone moves them apart
    assert metrics[0]["learner/logprob_gap_mean"] < 0.05
    evaluations = {(row["when"], row["name"]) for row in read_rows(run, "evaluations")}
    assert {("before", "procedural"), ("after", "procedural")} <= evaluations
    assert (run / "report" / "timeline.png").stat().st_size > 10_000
    assert "rollcage train countdown-small" in (run / "report" / "README.md").read_text()

    assert main(["eval", "rollcage/Countdown-v0", "--policy", str(run), "--num-tasks", "8", "--json"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["num_scored"] == 8

    assert main(["replay", str(run)]) == 0
    assert "0 different" in capfd.readouterr().out


def start(run: Path, *arguments: str) -> subprocess.Popen[bytes]:
    log = (run.parent / "log").open("ab")
    with log:
        return subprocess.Popen([sys.executable, "-m", "rollcage", "train", *arguments], stdout=log, stderr=log)


def wait_for(condition: Any, process: subprocess.Popen[bytes], log: Path, timeout_s: float = 180.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


@pytest.mark.timeout(900)
def test_t10_kill_9_at_random_moments_then_resume_goes_on_from_the_last_complete_checkpoint(tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    arguments = [*SMALL, "--num-updates", "9", "--checkpoint-every", "1", "--eval.num-tasks", "0", "--out", str(run)]
    process = start(run, *arguments)
    chance = random.Random(0)
    for round_ in range(3):
        wait_for(lambda: newest_checkpoint(run) is not None, process, log)
        before = newest_checkpoint(run)
        wait_for(lambda: newest_checkpoint(run) != before, process, log)  # noqa: B023
        time.sleep(chance.uniform(0.0, 0.6))
        children = descendants(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_gone(children)  # the learner's ranks end with their parent
        checkpoint = newest_checkpoint(run)
        assert checkpoint is not None
        version = read_state(checkpoint)["policy_version"]
        process = start(run, "--resume", str(run))
        wait_for(lambda: sum(r["event"] == "start" for r in read_rows(run, "events")) == round_ + 2, process, log)  # noqa: B023
        resumed = [row for row in read_rows(run, "events") if row["event"] == "start"][-1]
        assert resumed["resumed_from"].endswith(f"step-{version:06d}")
    assert process.wait(timeout=300) == 0, log.read_text()
    metrics = read_metrics(run)
    assert [row["policy_version"] for row in metrics] == list(range(1, 10))
    assert metrics[-1]["account/cancelled"] > 0  # what was in flight at the kills is counted, not lost
    assert not list((run / "checkpoints").glob(".partial-*"))
    final = newest_checkpoint(run)
    assert final is not None
    assert read_state(final)["policy_version"] == 9


@pytest.mark.timeout(300)
def test_a_stopped_run_ends_cleanly_and_says_how_to_go_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    process = start(run, *SMALL, "--num-updates", "1000", "--eval.num-tasks", "0", "--out", str(run))
    wait_for(lambda: (run / "metrics.jsonl").exists(), process, log)
    children = descendants(process.pid)
    assert children
    assert main(["train", "--resume", str(run)]) == 2
    [told] = capfd.readouterr().err.strip().splitlines()
    assert "in use by another process" in told
    control = json.loads((run / "control.json").read_text())
    with urlopen(control["address"] + "/metrics", timeout=10) as answer:
        metrics = answer.read().decode()
    assert float(re.findall(r"^rollcage_policy_version (.*)$", metrics, re.MULTILINE)[0]) >= 1
    assert "rollcage_learner_grad_norm" in metrics
    assert "rollcage_unknown_metrics_total" not in metrics, "a metric is not declared in monitor/metrics"
    with RunReader(run) as reader:
        assert reader.status()["state"] == "running"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130
        assert reader.status()["state"] == "stopped"
        assert reader.events(limit=1)[1][0]["event"] == "stopped"
    assert not (run / "control.json").exists()
    wait_gone(children)
    assert "--resume" in log.read_text()
    assert "Traceback" not in log.read_text()


def check_smollm2(run: Path, *arguments: str) -> list[dict[str, Any]]:
    """Train for two updates of two episodes each; returns the episodes."""
    result = rollcage(
        "train",
        *arguments,
        *("--num-updates", "2"),
        *("--rollout.num-groups", "1"),
        *("--rollout.group-size", "2"),
        *("--sampling.max-new-tokens", "12"),
        *("--learner.entropy-coef", "0.001"),  # so that there is a gradient even where every reward is the same
        *("--out", str(run)),
        timeout=550,
    )
    assert result.returncode == 0, result.stderr
    metrics = read_metrics(run)
    assert len(metrics) == 2
    episodes = read_rows(run, "trajectories")
    assert len(episodes) >= 4
    assert all(episode["failure"] is None for episode in episodes)
    assert all(row["rollout/splits"] == 0 for row in metrics)  # the chat template continues token by token
    assert metrics[0]["learner/logprob_gap_mean"] < 0.05  # sampler and trainer agree on the same weights
    return episodes


@pytest.mark.timeout(600)
def test_smollm2_trains_from_its_gguf_file(tmp_path: Path) -> None:
    check_smollm2(tmp_path / "run", "countdown-smollm2")


@pytest.mark.timeout(300)
def test_smollm2_trains_on_many_turns(shallow_smollm2: Path, tmp_path: Path) -> None:
    episodes = check_smollm2(tmp_path / "run", "frozenlake-smollm2", "--model", str(shallow_smollm2))
    assert max(len(episode["turns"]) for episode in episodes) > 1


def test_a_finished_run_reports_again_and_a_damaged_one_says_how_to_go_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    made = rollcage("train", *SMALL, "--num-updates", "1", "--eval.num-tasks", "0", "--out", str(run))
    assert made.returncode == 0, made.stderr
    assert rollcage("train", "--resume", str(run)).returncode == 0
    starts = [row for row in read_rows(run, "events") if row["event"] == "start"]
    assert len(starts) == 1, "a finished run only reports again"
    with RunReader(run) as reader:
        assert reader.status()["state"] == "finished"
        total, [first] = reader.trajectories(limit=1)
        assert total == len(read_rows(run, "trajectories"))
        [segment] = reader.trajectory(first["key"])["segments"]
    assert len(set(map(len, segment.values()))) == 1, "token ids, mask, log-probabilities and versions of every token"
    assert sum(segment["loss_mask"]) == first["num_tokens"]
    assert all(
        (logprob <= 0.0 and version >= 0) if sampled else (logprob == 0.0 and version == -1)
        for sampled, logprob, version in zip(
            segment["loss_mask"], segment["rollout_logprobs"], segment["policy_versions"], strict=True
        )
    )
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    (checkpoint / "trainer.json").write_text("{}")
    assert main(["train", "--resume", str(run)]) == 2
    told = capfd.readouterr().err
    assert "remove the folder to go on from an older one" in told.strip().splitlines()[-1]
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["countdown-smal"], "Did you mean 'countdown-small'?"),
        (["countdown-small", "--rollout.group-sise", "4"], "Did you mean '--rollout.group-size'?"),
        (["countdown-small", "--rollout.group-size", "four"], "--rollout.group-size"),
        (["countdown-small", "--rollout.group-size", "0"], "rollout.group_size must be at least 1"),
        (["countdown-small", "--learner.loss", "grop"], "Did you mean 'grpo'?"),
        (["countdown-small", "--env.id", "rollcage/Countdwn-v0"], "Did you mean 'rollcage/Countdown-v0'?"),
        (["countdown-small", "--env.split", "tran"], "Did you mean 'train'?"),
        (["countdown-small", "--model", "nowhere"], "nowhere"),
        (["countdown-small", "--learner.model", "x"], "learner.model follows model"),
        (["--resume", "nowhere"], "not a run folder"),
        (["countdown-small", "--out", "/proc/run"], "/proc/run"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    arguments: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    more = [] if {"--resume", "--out"} & set(arguments) else ["--out", str(out)]
    assert main(["train", *arguments, *more]) == 2
    told = capfd.readouterr().err
    assert message in told
    assert len(told.strip().splitlines()) == 1, told
    assert not out.exists()
