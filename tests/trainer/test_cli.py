"""The commands as a user meets them: exit codes, what stands on which stream, kill and resume."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rollcage.__main__ import main
from rollcage.trainer.agents.fake_endpoint import FakeEndpoint, RawReply

HEAVY = ("torch", "transformers", "deepspeed", "tyro", "rich", "matplotlib")
OWN_ENV = """
from rollcage.envs import RowTasks, TextEnv, Turn, register

class CapitalsEnv(TextEnv):
    def __init__(self):
        rows = [{"of": "France", "is": "Paris"}, {"of": "Chad", "is": "N'Djamena"}]
        super().__init__(RowTasks("capitals", {"train": rows}))

    def begin(self, task):
        return f"Capital of {task.data['of']}?"

    def advance(self, action):
        right = action == self.task.data["is"]
        return Turn("Yes." if right else "No.", float(right), True, right)

    def expert(self):
        return self.task.data["is"]

register("own/Capitals-v0", CapitalsEnv)
"""


def command(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "rollcage", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env={**os.environ, **environment},
    )


def solve(messages: list[dict[str, str]]) -> str | RawReply:
    """A model that solves what adds up, and takes its time."""
    time.sleep(0.05)
    text = messages[0]["content"]
    numbers = text.partition("numbers ")[2].partition(":")[0].replace(",", " +")
    return f"<answer>{numbers}</answer>"


def test_eval_keeps_its_contract() -> None:
    done = command("eval", "rollcage/Countdown-v0", "--policy", "expert", "--num-tasks", "50", "--seed", "3", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert {key: result[key] for key in ("env_id", "policy", "split", "num_tasks", "num_scored")} == {
        "env_id": "rollcage/Countdown-v0",
        "policy": "expert",
        "split": "test",
        "num_tasks": 50,
        "num_scored": 50,
    }
    assert (result["success_rate"], result["mean_reward"], result["failures"]) == (1.0, 1.0, {})
    low, high = result["success_ci95"]
    assert 0.9 < low < high == 1.0
    assert result["seconds"] >= 0
    assert "50/50 episodes" in done.stderr
    assert done.stdout.count("\n") == 1


def test_eval_without_json_is_for_people() -> None:
    done = command("eval", "rollcage/Countdown-v0", "--policy", "random", "--num-tasks", "20")
    assert done.returncode == 0
    assert "success      " in done.stdout
    assert "95 % interval" in done.stdout


@pytest.mark.parametrize("policy", ["expert", "random", "openai"])
def test_policies_without_weights_load_no_torch(policy: str, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom rollcage.__main__ import main\n"
        "assert main(sys.argv[2:]) == 0\n"
        "assert main(['bench', 'suite', 'countdown', '--num-tasks', '2', '--policy', sys.argv[1]]) == 0\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\nassert loaded == [], loaded\n"
    )
    with FakeEndpoint(solve) as server:
        name = f"openai:fake@{server.url}" if policy == "openai" else policy
        arguments = ["eval", "rollcage/FrozenLake-v0", "--policy", name, "--num-tasks", "3"]
        done = subprocess.run(
            [sys.executable, "-c", code, name, *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
    assert done.returncode == 0, done.stderr


def test_kill_9_and_the_same_command_again_gives_the_uninterrupted_result(tmp_path: Path) -> None:
    with FakeEndpoint(solve) as server:
        arguments = ["eval", "rollcage/Countdown-v0", "--policy", f"openai:fake@{server.url}", "--num-tasks", "60"]
        arguments += ["--seed", "4", "--concurrency", "4", "--json"]
        whole = command(*arguments)
        assert whole.returncode == 0, whole.stderr
        num_requests = len(server.requests)

        arguments += ["--output", str(tmp_path / "out")]
        process = subprocess.Popen(
            [sys.executable, "-m", "rollcage", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        episodes = tmp_path / "out" / "episodes.jsonl"
        deadline_s = time.monotonic() + 30
        while not (episodes.exists() and episodes.read_bytes().count(b"\n") >= 10) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        num_done = episodes.read_bytes().count(b"\n")
        assert 10 <= num_done < 60
        with episodes.open("ab") as file:
            file.write(b'{"task_id": "te')  # a kill may also cut a line short

        again = command(*arguments)
        assert again.returncode == 0, again.stderr
    assert num_requests == 60
    assert len(server.requests) - num_requests <= 60 + 4  # only what was in flight is asked for twice
    results = [json.loads(run.stdout.splitlines()[-1]) for run in (whole, again)]
    assert all(0 < result["success_rate"] < 1 for result in results)
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]
    keys = [(row["task_id"], row["attempt"]) for row in map(json.loads, episodes.read_text().splitlines())]
    assert len(keys) == len(set(keys)) == 60


def test_replay_finds_every_episode_identical_and_then_the_one_that_was_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    arguments = ["eval", "rollcage/FrozenLake-v0", "--policy", "random", "--num-tasks", "8", "--output", str(out)]
    assert main(arguments) == 0
    capsys.readouterr()
    assert main(["replay", str(out)]) == 0
    assert capsys.readouterr().out == "8 identical, 0 different\n"

    file = out / "episodes.jsonl"
    lines = file.read_text().splitlines()
    changed: dict[str, Any] = json.loads(lines[3])
    changed["turns"][-1]["observation"] = changed["turns"][-1]["observation"][:-3] + "!"
    file.write_text("\n".join([*lines[:3], json.dumps(changed), *lines[4:]]) + "\n")
    assert main(["replay", str(out)]) == 1
    said = capsys.readouterr().out
    assert f"{changed['id']} {changed['task_id']}: turn {len(changed['turns']) - 1}, character" in said
    assert "observation: recorded" in said
    assert said.endswith("7 identical, 1 different\n")
    assert main(["replay", str(file), "--trajectory", json.loads(lines[0])["id"]]) == 0


def test_an_environment_of_your_own_is_evaluated_and_replayed(tmp_path: Path) -> None:
    (tmp_path / "own_env.py").write_text(OWN_ENV)
    for placement in ("inline", "process"):
        arguments = ["own_env:own/Capitals-v0", "--policy", "expert", "--split", "train", "--placement", placement]
        done = command(
            "eval", *arguments, "--output", f"out-{placement}", "--json", cwd=tmp_path, PYTHONPATH=str(tmp_path)
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["success_rate"] == 1.0
        replayed = command(
            "replay", f"out-{placement}", "--placement", placement, cwd=tmp_path, PYTHONPATH=str(tmp_path)
        )
        assert (replayed.returncode, replayed.stdout) == (0, "2 identical, 0 different\n"), replayed.stderr


EVAL = ("eval", "rollcage/Countdown-v0", "--policy", "expert")
BAD_INPUT = {
    "unknown-environment": (("eval", "rollcage/Countdwn-v0", "--policy", "expert"), "mean 'rollcage/Countdown-v0'"),
    "unknown-module": (("eval", "nowhere:x/Y-v0", "--policy", "expert"), "cannot import the module 'nowhere'"),
    "unknown-split": ((*EVAL, "--split", "tset"), "Did you mean 'test'?"),
    "unknown-env-argument": ((*EVAL, "--env-arg", "colour=3"), "colour"),
    "bad-env-argument": ((*EVAL, "--env-arg", "colour"), "write KEY=VALUE"),
    "missing-data-file": ((*EVAL, "--env-arg", "data=nowhere.jsonl"), "nowhere.jsonl: no such file"),
    "malformed-data-line": ((*EVAL, "--env-arg", "data=broken.jsonl"), "broken.jsonl:2: "),
    "unknown-policy": (("eval", "rollcage/Countdown-v0", "--policy", "exprt"), "Did you mean 'expert'?"),
    "malformed-policy": (("eval", "rollcage/Countdown-v0", "--policy", "openai:m"), "openai:MODEL@URL"),
    "endpoint-down": (("eval", "rollcage/Countdown-v0", "--policy", "openai:m@http://127.0.0.1:9/v1"), "refused"),
    "not-a-model": (("eval", "rollcage/Countdown-v0", "--policy", "hollow"), "hollow is not a model"),
    "damaged-model": (("eval", "rollcage/Countdown-v0", "--policy", "damaged"), "damaged"),
    "run-without-checkpoint": (("eval", "rollcage/Countdown-v0", "--policy", "run"), "no complete checkpoint"),
    "unknown-option": ((*EVAL, "--colour"), "unrecognized arguments: --colour"),
    "no-number": ((*EVAL, "--num-tasks", "many"), "whole number of at least 1, not 'many'"),
    "negative-number": ((*EVAL, "--num-tasks", "-1"), "whole number of at least 1, not '-1'"),
    "bad-temperature": ((*EVAL, "--temperature", "nan"), "a number of at least 0, not 'nan'"),
    "missing-policy": (("eval", "rollcage/Countdown-v0"), "required: --policy"),
    "output-is-a-file": ((*EVAL, "--output", "broken.jsonl"), "cannot be written"),
    "replay-of-nothing": (("replay", "nowhere"), "nowhere: cannot be read"),
    "replay-of-a-folder-without-episodes": (("replay", "empty"), "episodes.jsonl"),
    "replay-of-no-records": (("replay", "rows.jsonl"), "rows.jsonl:1: this is not the record of an episode"),
    "replay-of-broken-json": (("replay", "torn.jsonl"), "torn.jsonl:1: not valid JSON"),
    "unknown-benchmark": (("bench", "suit"), "Did you mean 'suite'?"),
    "unknown-suite": (("bench", "suite", "gsm8", "--policy", "expert"), "Did you mean 'gsm8k'?"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_is_one_clear_line_exit_code_2_and_nothing_half_written(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "broken.jsonl").write_text('{"target": 3, "nums": [1, 2]}\n{"target": 3, "nums": [1,\n{}\n')
    (tmp_path / "torn.jsonl").write_text("{torn\n")
    (tmp_path / "rows.jsonl").write_text('{"target": 3, "nums": [1, 2]}\n')
    for folder in ("empty", "hollow", "damaged", "run/checkpoints"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "damaged" / "config.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith(f"rollcage {arguments[0]}: ")
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_extra_names_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["eval", "rollcage/Countdown-v0", "--policy", str(tmp_path)]) == 2
    assert "pip install 'rollcage[train]'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["eval", "replay", "bench", "bench suite"])
def test_every_command_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):  # argparse exits after its help
        assert main([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert f"  rollcage {name} " in text
