"""Dropout has no place in reinforcement learning of a policy."""

from __future__ import annotations

from torch import nn


def without_dropout(model: nn.Module) -> None:
    """Switch dropout off for good: a ratio must compare two policies, not two draws of dropout."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0  # type: ignore[assignment]
