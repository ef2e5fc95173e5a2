"""The fault harness on a real daemon: a small storm that holds, and proof that it can fail."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rollcage.errors import UserError
from rollcage.sandbox.chaos import caller, cycle, harness
from rollcage.sandbox.chaos.harness import Options, Report
from rollcage.sandbox.chaos.schedule import Injury, Plan, plan
from rollcage.sandbox.commands.chaos import run_chaos
from rollcage.sandbox.types import RestartPolicy

PLANTED = Path(__file__).with_name("planted.py")


def test_twelve_cycles_hold_and_leave_nothing(docker_endpoint: str, base_image: str) -> None:
    command = (sys.executable, "-m", "rollcage", "sandbox", "chaos", "--cycles", "12", "--seed", "5", "--json")
    done = subprocess.run(
        (*command, "--endpoint", docker_endpoint, "--image", base_image), capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ok"]
    assert told["broken"] == []
    assert told["num_kills"] > 0
    assert sum(told["faults"].values()) > 0
    assert {"deadline", "answer", "one per key", "settles", "gone", "alive", "nothing left"} <= set(told["kept"])
    assert told["outcomes"]["create: ok"] >= 12
    assert [line for line in done.stderr.splitlines() if " cycle 11: " in line]


def test_a_private_daemon_is_killed_and_goes_without_a_trace(
    docker_endpoint: str, bare_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = next(
        seed for seed in range(1000) if [plan(seed, n).restart_daemon for n in range(3)] == [False, True, False]
    )
    options = Options(docker_endpoint, image=bare_image, cycles=range(3), seed=seed, own_daemon=True)
    with tempfile.TemporaryDirectory(prefix="cage-") as folder:  # short: it holds unix sockets
        monkeypatch.setattr(tempfile, "tempdir", folder)
        report = asyncio.run(harness.run(options, lambda line: None))
        assert os.listdir(folder) == []
        assert folder not in Path("/proc/self/mounts").read_text()
    assert report.ok, report.ledger.breaches
    assert report.num_daemon_restarts == 1
    assert [it for it in report.ledger.outcomes if it.startswith("daemon restart: ")]


@pytest.mark.parametrize(
    ("bug", "broken", "number", "wanted"),
    [
        ("leaks containers", {"gone", "nothing left"}, 0, lambda it: not it.abandon and it.uses == ("exec",)),
        ("creates twice", {"one per key"}, 0, lambda it: it.num_callers == 3 and it.uses == ("exec",)),
        ("ignores deadlines", {"deadline"}, 0, lambda it: it.uses == ("exec",) and it.restart is RestartPolicy.FAIL),
        ("loses checkpoints", {"restored"}, 1, lambda it: it.snapshot and it.restart is RestartPolicy.RESTORE),
    ],
    ids=("leaks containers", "creates twice", "ignores deadlines", "loses checkpoints"),
)
def test_a_manager_with_a_bug_is_caught(
    bug: str,
    broken: set[str],
    number: int,
    wanted: Callable[[Plan], bool],
    docker_endpoint: str,
    base_image: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(caller, "SLACK_S", 2.0)
    monkeypatch.setattr(cycle, "SETTLE_S", 8.0)
    monkeypatch.setattr(harness, "LEFT_S", 4.0)
    monkeypatch.setattr(harness, "ALIVE_S", 6.0)
    seed = next(
        seed for seed in range(10_000) if plan(seed, number).kill_after_s is None and wanted(plan(seed, number))
    )
    options = Options(
        docker_endpoint,
        image=base_image,
        cycles=(number,),
        seed=seed,
        fault_share=0.0,
        command=(sys.executable, str(PLANTED), bug),
    )
    report = asyncio.run(harness.run(options, lambda line: None))
    assert {breach.promise for breach in report.ledger.breaches} >= broken, report.ledger.breaches
    assert not report.ok
    assert "BROKEN" in str(report)


def test_the_exit_code_is_1_where_a_promise_was_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(options: Options, tell: Callable[[str], None]) -> Report:
        report = Report(options, harness.Ledger())
        if options.seed == 13:
            report.ledger.check("gone", 2, False, "it is still there")
        return report

    monkeypatch.setattr(harness, "run", run)
    assert run_chaos(["--seed", "12", "--cycles", "3"]) == 0
    assert capsys.readouterr().out.startswith("chaos: 3 cycles, seed 12: ")
    assert run_chaos(["--seed", "13", "--only", "2"]) == 1
    said = capsys.readouterr()
    assert said.out.endswith("1 BROKEN; left: nothing\n")
    assert "cycle 2: BROKEN 'gone'" in said.err


def test_what_cannot_be_run_is_told_at_once(tmp_path: Path) -> None:
    for arguments in (
        ["--cycles", "0"],
        ["--faults", "101"],
        ["--endpoint", "tcp://127.0.0.1:1"],
        ["--endpoint", f"unix://{tmp_path}/none"],
        ["--endpoint", "nonsense"],
    ):
        with pytest.raises(UserError) as error:
            run_chaos(arguments)
        assert "\n" not in str(error.value)


def test_ctrl_c_in_the_middle_leaves_nothing(docker_endpoint: str, base_image: str) -> None:
    command = (sys.executable, "-m", "rollcage", "sandbox", "chaos", "--cycles", "40", "--seed", "8")
    with tempfile.TemporaryDirectory(prefix="cage-") as folder:  # short: it holds unix sockets
        with subprocess.Popen(
            (*command, "--endpoint", docker_endpoint, "--image", base_image),
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": folder},
        ) as storm:
            assert storm.stderr is not None
            assert any("cycle" in line for line in storm.stderr)
            (store,) = Path(folder).glob("rollcage-chaos-*/m/id")
            label = f"label=rollcage.manager={store.read_text()}"
            os.killpg(storm.pid, signal.SIGINT)
            assert "Traceback" not in storm.stderr.read()
            assert storm.wait(60.0) == 130
        assert os.listdir(folder) == []
    for what in (("ps", "-a"), ("images",), ("network", "ls")):
        listing = ("docker", "-H", docker_endpoint, *what, "-q", "--filter", label)
        assert subprocess.run(listing, capture_output=True, timeout=30, check=True).stdout == b""


def test_every_kind_of_injury_comes_in_few_cycles() -> None:
    assert {plan(1, number).injury for number in range(len(Injury))} == set(Injury)
