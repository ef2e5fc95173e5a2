"""A model folder, a checkpoint or a run as a policy: a real, tiny, random language model on the real local engine."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from rollcage.__main__ import main
from rollcage.errors import UserError
from rollcage.trainer.agents.policies import make_policy
from rollcage.trainer.policies.tokenizer import build_tokenizer
from rollcage.trainer.types import Sampling


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers with a chat template."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer(["Make 10 from the numbers 1, 2, 3.", "<answer>1+2*3</answer>"])
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_checkpoint(model: Path, run: Path, version: int) -> Path:
    checkpoint = run / "checkpoints" / f"step-{version:06d}"
    shutil.copytree(model, checkpoint / "model")
    (checkpoint / "trainer.json").write_text("{}")
    return checkpoint


def evaluate(policy: Path, *arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    command = ["eval", "rollcage/Countdown-v0", "--policy", str(policy), "--num-tasks", "6", "--max-new-tokens", "24"]
    assert main([*command, "--json", *arguments]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return result


def actions(folder: Path) -> dict[str, list[str]]:
    records = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    return {f"{r['task_id']}#{r['attempt']}": [turn["action"] for turn in r["turns"]] for r in records}


def test_a_model_folder_plays_and_its_draws_do_not_depend_on_who_else_plays(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = ("--temperature", "1", "--attempts", "2", "--seed", "5")
    result = evaluate(model, *drawn, "--output", str(tmp_path / "one"), "--concurrency", "1", capsys=capsys)
    assert (result["num_tasks"], result["num_scored"], result["failures"]) == (6, 12, {})
    evaluate(model, *drawn, "--output", str(tmp_path / "all"), "--concurrency", "12", capsys=capsys)
    assert actions(tmp_path / "one") == actions(tmp_path / "all")
    assert len({tuple(said) for said in actions(tmp_path / "one").values()}) == 12  # attempts differ
    assert main(["replay", str(tmp_path / "all")]) == 0


def test_multi_turn_episodes_are_one_token_record(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(model, "--env-arg", "max_attempts=3", "--output", str(tmp_path / "out"), capsys=capsys)
    record = json.loads((tmp_path / "out" / "episodes.jsonl").read_text().splitlines()[0])
    spans = [(turn["segment"], turn["start"], turn["end"]) for turn in record["turns"]]
    assert len(spans) == 3 or record["success"]
    assert all(start < end for _, start, end in spans)
    assert [segment for segment, _, _ in spans] == [0] * len(spans)
    assert spans == sorted(spans)


def test_a_conversation_that_outgrows_the_model_keeps_its_rewards_and_says_so(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--env-arg", "max_attempts=50", "--output", str(tmp_path / "out"))
    assert evaluate(model, *arguments, capsys=capsys)["num_scored"] == 6
    records = [json.loads(line) for line in (tmp_path / "out" / "episodes.jsonl").read_text().splitlines()]
    assert all(r["truncated"] and r["info"]["truncated_by"] == "context_full" for r in records if not r["success"])
    assert main(["replay", str(tmp_path / "out")]) == 0


def test_a_run_means_its_newest_complete_checkpoint(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    save_checkpoint(model, run, 9)
    newest = save_checkpoint(model, run, 10)
    half = save_checkpoint(model, run, 11)
    (half / "trainer.json").unlink()
    policy = make_policy(str(run), Sampling(max_new_tokens=8))
    assert policy.identity.startswith(str(newest))
    assert evaluate(run, capsys=capsys)["num_scored"] == 6


def test_another_checkpoint_is_another_evaluation(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    save_checkpoint(model, run, 1)
    evaluate(run, "--output", str(out), capsys=capsys)
    save_checkpoint(model, run, 2)
    assert main(["eval", "rollcage/Countdown-v0", "--policy", str(run), "--num-tasks", "6", "--output", str(out)]) == 2
    assert "holds another evaluation: policy was" in capsys.readouterr().err


def test_unreadable_weights_are_one_clear_line(model: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(model, damaged)
    (damaged / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UserError, match="damaged"):
        asyncio.run(make_policy(str(damaged), Sampling(max_new_tokens=8)).start())


def test_a_model_without_chat_template_is_refused(model: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(model, bare)
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    path = bare / "tokenizer_config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "chat_template"}))
    with pytest.raises(UserError, match="no chat template"):
        make_policy(str(bare), Sampling(max_new_tokens=8))
