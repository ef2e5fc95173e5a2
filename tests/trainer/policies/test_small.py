"""The small policies that ship, and the script that makes them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from rollcage.envs.countdown.env import CountdownEnv
from rollcage.trainer.policies import SMALL_POLICIES, small_policy_path
from rollcage.trainer.policies.games import GAMES
from rollcage.trainer.policies.make_small import main, success


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """A model this small gains nothing from threads where tests run beside one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def shipped(name: str = "small") -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(small_policy_path(name), dtype=torch.float32).eval()


def test_every_game_has_its_policy() -> None:
    assert tuple(GAMES) == SMALL_POLICIES


@pytest.mark.parametrize("name", SMALL_POLICIES)
def test_weights_are_small_and_bfloat16(name: str) -> None:
    assert (small_policy_path(name) / "model.safetensors").stat().st_size <= 4_000_000
    assert AutoModelForCausalLM.from_pretrained(small_policy_path(name)).dtype == torch.bfloat16
    assert shipped(name).config.num_hidden_layers == GAMES[name].num_layers


@pytest.mark.parametrize(
    ("name", "least_tokens", "most_tokens"),
    [
        ("small", 25, 90),  # some tens of tokens of reasoning, and a dozen of answer
        ("small-frozenlake", 5.9, 6.1),  # four cells, a move, and the message's end
    ],
)
def test_success_at_the_start_leaves_much_to_learn(name: str, least_tokens: float, most_tokens: float) -> None:
    """The band of the untrained policies on held-out tasks, as sampled while training and as evaluated."""
    model, tokenizer = shipped(name), AutoTokenizer.from_pretrained(small_policy_path(name))
    torch.manual_seed(0)
    sampled, num_tokens = success(model, tokenizer, GAMES[name], 200, temperature=1.0)
    assert 0.15 < sampled < 0.45
    assert least_tokens <= num_tokens < most_tokens
    greedy, _ = success(model, tokenizer, GAMES[name], 200, temperature=0.0)
    assert 0.1 < greedy < 0.6


def test_it_calculates_right_and_judges_right() -> None:
    model, tokenizer = shipped(), AutoTokenizer.from_pretrained(small_policy_path())
    env = CountdownEnv(split="validation")
    tasks = [env.tasks.task("validation", 5000 + index) for index in range(100)]
    inputs = tokenizer.apply_chat_template(
        [[{"role": "user", "content": env.begin(task)}] for task in tasks],
        add_generation_prompt=True,
        padding=True,
        return_tensors="pt",
        return_dict=True,
    )
    torch.manual_seed(0)
    output = model.generate(**inputs, do_sample=True, max_new_tokens=128)[:, inputs["input_ids"].shape[1] :]
    steps, verdicts = [], []
    for task, message in zip(tasks, tokenizer.batch_decode(output, skip_special_tokens=True), strict=True):
        for a, operator, b, result in re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", message):
            exact = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b), "/": int(a) / max(int(b), 1)}
            steps.append(exact[operator] == int(result))
        for result, verdict in re.findall(r"=(\d+) (yes|no)\n", message):
            verdicts.append((int(result) == task.data["target"]) == (verdict == "yes"))
    assert len(steps) > 200
    assert sum(steps) / len(steps) > 0.8
    assert sum(verdicts) / len(verdicts) > 0.95


@pytest.mark.parametrize("name", SMALL_POLICIES)
def test_make_small_writes_a_policy_that_loads(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "policy"
    assert main(["--policy", name, "--out", str(out), "--steps", "3", "--num-eval-tasks", "4"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == str(out)
    assert "3/3 steps" in printed.err
    made, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert made.dtype == torch.bfloat16
    assert len(tokenizer) == made.config.vocab_size
    assert made.generation_config.eos_token_id == tokenizer.eos_token_id
    assert f"--policy {name} --out DIR --seed 0 --steps 3" in (out / "README.md").read_text(encoding="utf-8")
    there = small_policy_path(name)
    assert {file.name for file in there.iterdir()} == {file.name for file in out.iterdir()}
    for file in ("config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (out / file).read_text() == (there / file).read_text(), f"{file}: make the shipped policy anew"


def test_make_small_is_deterministic(tmp_path: Path) -> None:
    for name in ("a", "b"):
        main(["--out", str(tmp_path / name), "--steps", "2", "--num-eval-tasks", "1", "--seed", "5"])
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second


@pytest.mark.parametrize("option", ["--steps", "--threads", "--num-eval-tasks"])
def test_bad_arguments_end_in_one_line(option: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--out", str(tmp_path / "policy"), option, "0"])
    assert stop.value.code == 2
    assert "must be at least 1" in capsys.readouterr().err
    assert not (tmp_path / "policy").exists()


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    assert "example:\n  python -m rollcage.trainer.policies.make_small --out small" in capsys.readouterr().out


def test_the_accessor_imports_no_torch() -> None:
    code = (
        "import sys; from rollcage.trainer.policies import small_policy_path; small_policy_path(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
