"""The policies that ship with Rollcage: one small language model, ready to learn Countdown."""

from __future__ import annotations

from pathlib import Path


def small_policy_path() -> Path:
    """Return the folder of the small policy: a causal language model and its tokenizer in transformers' format."""
    return Path(__file__).parent / "small"
