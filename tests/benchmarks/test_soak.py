"""`rollcage bench soak`: a run under attack, and an account that tells when a promise was broken."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollcage.benchmarks.soak import account, soak, training
from rollcage.benchmarks.soak.account import FATES, Finding, take_account
from rollcage.benchmarks.soak.soak import main
from rollcage.benchmarks.soak.unruly import ENV_ID, UnrulyEnv
from rollcage.envs import make
from rollcage.errors import RollcageError, UserError

PROMISES = (
    "token in, token out",
    "freshness",
    "conservation",
    "isolation",
    "resume",
    "cleanliness",
    "determinism",
)


@pytest.mark.timeout(600)
def test_a_run_keeps_its_promises_although_it_is_attacked(tmp_path: Path) -> None:
    command = ["bench", "soak", "--injuries", "2", "--pause", "0.2", "--only", "learner", "worker", "stop", "--json"]
    command += ["--seed", "1"]  # it draws the learner, then a worker
    done = subprocess.run(
        [sys.executable, "-m", "rollcage", *command, "--out", str(tmp_path / "soak")],
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["held"]
    assert sum(told["injuries"].values()) == 2
    assert tuple(told["promises"]) == ("progress", *PROMISES)


def row(version: int, **changes: float) -> dict[str, Any]:
    started = 10.0 * version
    told = {
        "policy_version": version,
        "learner/logprob_gap_mean": 0.01,
        "rollout/staleness_max": 1,
        "rollout/splits": 0,
        "account/started": started,
        **{f"account/{fate}": 0.0 for fate in FATES},
        "account/trained": started - 2,
        "account/failed": 1.0,
        "account/in_flight": 1.0,
    }
    return told | {name.replace("__", "/"): value for name, value in changes.items()}


def episode(**changes: Any) -> dict[str, Any]:
    """One that plays the same when it is played again."""
    env = make("rollcage/Countdown-v0", split="train")
    task = env.unwrapped.tasks.task("train", 0)  # type: ignore[attr-defined]
    prompt, _ = env.reset(seed=1, options={"task": task.id})
    observation, reward, terminated, truncated, _ = env.step("<answer>1</answer>")
    told = {
        "env_id": "rollcage/Countdown-v0",
        "env_kwargs": {"split": "train"},
        "task_id": task.id,
        "seed": 1,
        "prompt": prompt,
        "turns": [{"action": "<answer>1</answer>", "observation": observation, "reward": reward}],
        "terminated": terminated,
        "truncated": truncated,
    }
    return told | changes


FAILED = {"failure": {"kind": "infra", "reason": "env_died", "message": ""}, "turns": []}


def write(
    folder: Path,
    rows: list[dict[str, Any]],
    starts: tuple[str | None, ...] = (None, "runs/x/checkpoints/step-000001"),
    episodes: tuple[dict[str, Any], ...] = (),
) -> None:
    """Write the records of a run."""
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    events = [{"event": "start", "resumed_from": start} for start in starts]
    for name, lines in (("metrics", rows), ("events", events), ("trajectories", episodes or (episode(),))):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def broken(folder: Path, rows: list[dict[str, Any]], *, leftovers: tuple[str, ...] = (), **records: Any) -> list[str]:
    """Return which promises a run with these records broke."""
    write(folder, rows, **records)
    findings = take_account(
        folder, async_ratio=1.0, resumed_from=(None, "step-000001"), leftovers=leftovers, attacked=True
    )
    assert tuple(finding.promise for finding in findings) == PROMISES
    return [finding.promise for finding in findings if not finding.held]


def replays_well(run: Path) -> Finding:
    return Finding("determinism", True, "")


def test_the_account_finds_each_broken_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = [row(1), row(2), row(3)]
    different = (episode(), episode(prompt="Another one."))
    assert broken(tmp_path / "8", good, episodes=different) == ["determinism"]
    monkeypatch.setattr(account, "_replayed", replays_well)
    assert broken(tmp_path / "0", good) == []
    assert broken(tmp_path / "1", [*good[:2], row(3, learner__logprob_gap_mean=2.0)]) == ["token in, token out"]
    assert broken(tmp_path / "2", [*good[:2], row(3, rollout__staleness_max=2)]) == ["freshness"]
    assert broken(tmp_path / "3", [row(1), row(2, account__trained=17.0), row(3)]) == ["conservation"]
    quiet = [row(1, account__failed=0.0, account__trained=9.0)]
    assert broken(tmp_path / "4", quiet) == ["isolation"], "nothing failed, although it was attacked"
    assert broken(tmp_path / "5", [row(1), row(3)]) == ["resume"], "an update is missing"
    other = (None, "runs/x/checkpoints/step-000002")
    assert broken(tmp_path / "6", good, starts=other) == ["resume"], "not from the newest checkpoint"
    assert broken(tmp_path / "7", good, leftovers=("process 7",)) == ["cleanliness"]
    assert broken(tmp_path / "9", quiet, episodes=(episode(), episode(**FAILED))) == []


class Scripted(training.Training):
    """A run without a process, that makes two updates at once; then `script` says what happens."""

    script = staticmethod(lambda: None)

    def start(self) -> None:
        self.resumed_from.append(None)

    async def next_update(self) -> None:
        if self._read_on():
            self.script()
            await asyncio.sleep(0.01)
        else:
            write(self._run, [row(1), row(2)], starts=(None,))


def soaked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], script: Callable[[], None]
) -> tuple[int, list[str]]:
    monkeypatch.setattr(soak, "Training", Scripted)
    monkeypatch.setattr(Scripted, "script", staticmethod(script))
    monkeypatch.setattr(account, "_replayed", replays_well)
    code = main(["--out", str(tmp_path), "--pause", "0.01", "--injuries", "1000", "--only", "worker"])
    return code, capsys.readouterr().out.splitlines()


def test_an_hour_that_is_cut_short_ends_with_the_account_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = soaked(tmp_path, monkeypatch, capsys, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert code == 0, told
    assert told[1] == "held   progress: 2 updates, each in time"
    assert len(told) == 2 + len(PROMISES)


def test_a_run_that_stops_making_updates_breaks_a_promise_and_is_accounted_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stuck() -> None:
        raise RollcageError("no update within 300 s")

    code, told = soaked(tmp_path, monkeypatch, capsys, stuck)
    assert code == 1
    assert told[1] == "BROKEN progress: no update within 300 s"
    assert sum(line.startswith("held") for line in told) == len(PROMISES)


def test_a_run_that_never_begins_and_a_folder_in_use_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MAX_ENDS", 1)
    with pytest.raises(RollcageError, match="it ends without an update"):
        main(["--out", str(tmp_path / "a"), "--override=--no-such-field=1"])
    (tmp_path / "b" / "run").mkdir(parents=True)
    (tmp_path / "b" / "run" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="holds a run already"):
        main(["--out", str(tmp_path / "b")])


def test_unruly_episodes_do_what_their_seed_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def fates(hang: float, fail: float, die: float) -> list[str]:
        env, done = UnrulyEnv(hang=hang, fail=fail, die=die), list[str]()
        monkeypatch.setattr(time, "sleep", lambda seconds: done.append("hang"))
        monkeypatch.setattr("os._exit", lambda code: done.append("die"))
        for seed in range(40):
            env.reset(seed=seed)
            try:
                env.step("<answer>1</answer>")
            except RuntimeError:
                done.append("fail")
        return done

    assert fates(0.0, 0.0, 0.0) == []
    mixed = fates(0.2, 0.2, 0.2)
    assert set(mixed) == {"hang", "fail", "die"}
    assert mixed == fates(0.2, 0.2, 0.2)
    assert make(ENV_ID, hang=0.5).unwrapped.__class__.__name__ == "UnrulyEnv"
