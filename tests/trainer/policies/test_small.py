"""The small policy that ships, and the script that makes it."""

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
from rollcage.trainer.policies import small_policy_path
from rollcage.trainer.policies.make_small import main, success


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """A model this small gains nothing from threads where tests run beside one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(small_policy_path(), dtype=torch.float32).eval()


def test_weights_are_small_deep_and_bfloat16(model: LlamaForCausalLM) -> None:
    weights = small_policy_path() / "model.safetensors"
    assert weights.stat().st_size <= 8_000_000
    assert AutoModelForCausalLM.from_pretrained(small_policy_path()).dtype == torch.bfloat16
    assert model.config.num_hidden_layers >= 6
    assert model.config.num_attention_heads >= 4


def test_success_at_the_start_leaves_much_to_learn(model: LlamaForCausalLM) -> None:
    """The documented band of the untrained policy on held-out tasks, as sampled while training and as evaluated."""
    tokenizer = AutoTokenizer.from_pretrained(small_policy_path())
    torch.manual_seed(0)
    sampled, num_tokens = success(model, tokenizer, 200, temperature=1.0)
    assert 0.15 < sampled < 0.42
    assert 25 < num_tokens < 90, "some tens of tokens of reasoning, and a dozen of answer"
    greedy, _ = success(model, tokenizer, 200, temperature=0.0)
    assert 0.1 < greedy < 0.42


def test_it_calculates_right_and_judges_right(model: LlamaForCausalLM) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small_policy_path())
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


def test_make_small_writes_a_policy_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "policy"
    assert main(["--out", str(out), "--steps", "3", "--num-eval-tasks", "4"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == str(out)
    assert "3/3 steps" in printed.err
    made, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    assert made.dtype == torch.bfloat16
    assert len(tokenizer) == made.config.vocab_size
    assert made.generation_config.eos_token_id == tokenizer.eos_token_id
    assert "--seed 0 --steps 3 --threads 1" in (out / "README.md").read_text(encoding="utf-8")
    shipped = small_policy_path()
    assert {file.name for file in shipped.iterdir()} == {file.name for file in out.iterdir()}
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (out / name).read_text() == (shipped / name).read_text(), f"{name}: make the shipped policy anew"


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
