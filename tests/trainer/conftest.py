"""SmolLM2 for the tests that train it: whole, and cut short."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from rollcage.trainer.config import model_path
from rollcage.trainer.models import load_model, load_tokenizer


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct in transformers' format, unpacked once for all processes of a test run.

    A process loads it within a second, but its GGUF file in half a minute.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "smollm2"
    with (shared / "smollm2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _save(load_model(model_path("smollm2")), load_tokenizer(model_path("smollm2")), shared / "smollm2.partial")
            (shared / "smollm2.partial").rename(folder)
    return folder


@pytest.fixture
def shallow_smollm2(smollm2: Path, tmp_path: Path) -> Path:
    """The first 3 of SmolLM2's 30 layers: what it says means little, and it is trained in a fraction of the time."""
    model = load_model(smollm2)
    model.model.layers = model.model.layers[:3]
    model.config.num_hidden_layers = 3
    return _save(model, load_tokenizer(smollm2), tmp_path / "shallow")


def _save(model: object, tokenizer: object, folder: Path) -> Path:
    for part in (model, tokenizer):
        part.save_pretrained(folder)  # type: ignore[attr-defined]
    return folder
