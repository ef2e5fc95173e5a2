"""The policies that ship with Rollcage: small language models, each ready to learn one game."""

from __future__ import annotations

from pathlib import Path

SMALL_POLICIES = ("small", "small-frozenlake", "small-critic", "small-critic-tiny")
"""Their names. They play Countdown and FrozenLake; the last two are smaller relatives of "small", for its critics."""


def small_policy_path(name: str = "small") -> Path:
    """Return the folder of a small policy: a causal language model and its tokenizer in transformers' format."""
    return Path(__file__).parent / name
