"""Loading models and tokenizers: what loads, and the one line that a user gets where it does not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rollcage.errors import UserError
from rollcage.trainer.models import find_model, load_model, load_tokenizer, resolve_dtype


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random one-layer Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("models") / "llama"
    sizes = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=16, tie_word_embeddings=True)).save_pretrained(folder)
    return folder


@pytest.fixture
def copy(model_folder: Path, tmp_path: Path) -> Path:
    """A copy of the model, to be damaged."""
    return Path(shutil.copytree(model_folder, tmp_path / "copy"))


def test_a_folder_loads_in_evaluation_mode_in_the_asked_dtype(model_folder: Path) -> None:
    model = load_model(model_folder, "bfloat16")
    assert not model.training
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


def test_a_checkpoint_loads_by_the_model_folder_in_it(model_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(model_folder, tmp_path / "model")
    assert find_model(tmp_path) == tmp_path / "model"
    assert load_model(tmp_path).config.vocab_size == 16


def _truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)


def _drop_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _reshape_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"][:7].clone()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_truncate, "cannot load the model at .*incomplete"),
        (_drop_a_weight, r"1 weights are missing \(model.norm.weight"),
        (_reshape_a_weight, r"1 weights are of another shape \(model.norm.weight"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "cannot load the model at"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot load the model at .*model.safetensors"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot load the model at .*JSON"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "no"}'), "cannot load the model at .*no"),
        (lambda folder: (folder / "config.json").unlink(), "is not a model: it has no config.json"),
        (shutil.rmtree, "no model at .*: give a folder"),
    ],
)
def test_an_unreadable_checkpoint_gives_one_clear_line(
    copy: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(copy)
    with pytest.raises(UserError, match=message) as error:
        load_model(copy)
    assert "\n" not in str(error.value)
    assert str(copy) in str(error.value)


def test_a_missing_tokenizer_gives_one_clear_line(model_folder: Path) -> None:
    with pytest.raises(UserError, match="cannot load the tokenizer at"):
        load_tokenizer(model_folder)


def test_unknown_dtype_and_missing_or_damaged_gguf(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown dtype 'float3' .*Did you mean 'float32'"):
        load_model(model_folder, "float3")
    with pytest.raises(UserError, match="no GGUF file at"):
        load_model(tmp_path / "none.gguf")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(UserError, match=r"cannot load the model at .*bad.gguf"):
        load_model(tmp_path / "bad.gguf")


@pytest.mark.parametrize(
    ("instructions", "device", "expected"),
    [
        ({"amx_bf16": True}, "cpu", "bfloat16"),
        ({"avx512_bf16": True}, "cpu", "bfloat16"),
        ({"avx2": True, "amx_bf16": False}, "cpu", "float32"),
        ({}, "cuda:0", "bfloat16"),
    ],
)
def test_auto_is_bfloat16_only_where_the_device_is_made_for_it(
    instructions: dict[str, bool], device: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: instructions, raising=False)
    assert resolve_dtype("auto", device) == expected
    assert resolve_dtype("float32", device) == "float32"
