"""The benchmark suites: what they are made of, what their one line says, and that they go on after a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rollcage.__main__ import main
from rollcage.benchmarks.cli import BENCHMARKS
from rollcage.benchmarks.suites import SUITES
from rollcage.envs.qa.tasks import COLLECTIONS
from rollcage.trainer.agents.fake_endpoint import FakeEndpoint

SUMS = [
    {"question": f"What is {a} + {a}?", "answer": f"{a} + {a} = <<{a}+{a}={2 * a}>>{2 * a}\n#### {2 * a}"}
    for a in range(9)
]
CHOICES = [
    {"question": f"Which is {n}?", "options": ["1", "2", "3", "4"], "answer": "ABCD"[n - 1]} for n in (1, 2, 3, 4)
]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small data sets of our own under the names of the published ones, in a working directory of its own."""
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "gsm8k_test.jsonl", SUMS)
    for name in ("math500", "aime24", "aime25", "amc23", "olympiadbench"):
        write(
            folder / f"{name}.jsonl", [{"problem": row["question"], "answer": str(2 * i)} for i, row in enumerate(SUMS)]
        )
    for name in ("mmlu", "bbh", *COLLECTIONS["agieval"]):
        write(folder / f"{name}_test.jsonl", CHOICES)
    write(folder / "countdown_3to4_test.jsonl", [{"target": 6, "nums": [1, 2, 3]}, {"target": 24, "nums": [4, 6, 1]}])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLCAGE_DATA", raising=False)
    return folder


def suite(*arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["bench", "suite", *arguments]) == 0, capsys.readouterr().err
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


@pytest.mark.parametrize("name", SUITES)
def test_the_expert_solves_every_suite(
    name: str,
    own_data: Path,
    shared_data: Path | None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if shared_data is not None:
        monkeypatch.setenv("ROLLCAGE_DATA", str(shared_data))  # the real data where they are
    result = suite(name, "--policy", "expert", "--num-tasks", "25", capsys=capsys)
    assert result["not_solved"] == []
    assert result["pass@1"] == result["mean_reward"] == 1.0
    assert result["num_scored"] == result["num_tasks"] >= len(SUITES[name]) * 2
    assert list(result["parts"]) == list(SUITES[name])
    assert (result["failures"], result["left_out"]) == ({}, {})


def test_several_attempts_give_avg_at_k_and_unbiased_pass_at_k(
    own_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = suite("countdown", "--policy", "random", "--num-tasks", "20", "--attempts", "6", capsys=capsys)
    assert result["pass@1"] == result["avg@6"]
    values = [result[f"pass@{k}"] for k in (1, 2, 4, 6)]
    assert values == sorted(values)
    assert 0 < values[0] < values[-1]
    for k in (1, 2, 4, 6):
        low, high = result[f"pass@{k}_ci95"]
        assert low <= result[f"pass@{k}"] <= high
    assert (result["num_tasks"], result["num_scored"]) == (22, 132)
    assert result["seconds"] >= 0
    assert result["suite"] == "countdown"
    assert result["policy"] == "random"


def test_it_says_where_its_metrics_are(own_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "suite", "countdown", "--policy", "random", "--num-tasks", "2"]) == 0
    assert "metrics: http://127.0.0.1:" in capsys.readouterr().err


def test_the_rates_of_a_suite_weigh_every_task_the_same(own_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = suite("countdown", "--policy", "random", "--num-tasks", "30", capsys=capsys)
    parts = result["parts"].values()
    pooled = sum(part["pass@1"] * part["num_scored"] for part in parts) / sum(part["num_scored"] for part in parts)
    assert result["pass@1"] == pytest.approx(pooled)


def test_a_part_without_data_is_left_out_where_it_may_be_and_named(
    own_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_data / "countdown_3to4_test.jsonl").unlink()
    result = suite("countdown", "--policy", "expert", "--num-tasks", "5", capsys=capsys)
    assert list(result["parts"]) == ["procedural"]
    assert "countdown_3to4_test.jsonl" in result["left_out"]["3to4"]


@pytest.mark.parametrize("name", ["gsm8k", "qa"])
def test_missing_data_are_one_clear_line_and_nothing_is_written(
    name: str, own_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in own_data.iterdir():
        path.unlink()
    assert main(["bench", "suite", name, "--policy", "expert"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rollcage bench: data set ")
    assert err.count("\n") == 1
    assert not Path("runs").exists()


def test_a_malformed_data_line_is_named(own_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (own_data / "gsm8k_test.jsonl").open("a") as file:
        file.write('{"question": "What?"}\n')
    assert main(["bench", "suite", "gsm8k", "--policy", "expert"]) == 2
    assert "gsm8k_test.jsonl:10: " in capsys.readouterr().err


def test_the_same_command_goes_on_after_kill_9_in_a_folder_of_its_own(own_data: Path) -> None:
    def answer(messages: list[dict[str, str]]) -> str:
        time.sleep(0.05)
        number = int(messages[0]["content"].split()[2])
        return f"\\boxed{{{2 * number if number % 2 else 0}}}"

    with FakeEndpoint(answer) as server:
        command = [sys.executable, "-m", "rollcage", "bench", "suite", "gsm8k", "--concurrency", "2", "--attempts", "5"]
        command += ["--policy", f"openai:fake@{server.url}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + 30
        while len(server.requests) < 12 and time.monotonic() < deadline_s:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        [output] = Path("runs").glob("suite-gsm8k-*")
        num_done = (output / "gsm8k" / "episodes.jsonl").read_bytes().count(b"\n")
        assert 0 < num_done < 45
        again = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert again.returncode == 0, again.stderr
        result = json.loads(again.stdout.splitlines()[-1])
        assert Path(result["output"]) == output
        assert result["num_scored"] == 45
        assert result["pass@1"] == result["pass@5"] == pytest.approx(5 / 9)  # 0 and the four odd numbers
        asked = len(server.requests)
        assert asked <= 45 + 2  # only what was in flight at the kill is asked for twice
        subprocess.run(command, capture_output=True, timeout=60, check=True)
        assert len(server.requests) == asked


def test_every_benchmark_can_be_called() -> None:
    for module, function, _ in BENCHMARKS.values():
        assert callable(getattr(import_module(module), function))
