"""Low-rank adapters (LoRA, arXiv 2106.09685): only they are trained; published and saved weights have them added."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from rollcage.errors import require
from rollcage.trainer.learner.config import LearnerConfig

ADAPTER = "default"


def add_adapters(policy: nn.Module, config: LearnerConfig) -> None:
    """Put an adapter of ``config.lora_rank`` on every linear layer but the output, in place, and freeze the rest.

    They change nothing at first: one of an adapter's two matrices is 0.

    Raises:
        MissingExtra: peft is not installed.
    """
    peft = require("peft", "train")
    adapter = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules="all-linear",
        lora_dropout=0.0,  # a ratio must compare two policies, not two draws of dropout
    )
    peft.inject_adapter_in_model(adapter, policy, adapter_name=ADAPTER)


def base_name(name: str) -> str:
    """Return the name that a weight of a policy with adapters has in the policy without; "" for an adapter's own."""
    return "" if ".lora_" in name else name.replace(".base_layer.", ".")


def find_adapters(policy: nn.Module) -> dict[str, Any]:
    """Return peft's layers by the name of the weight that each adapts; empty where there are no adapters."""
    layers = (item for item in policy.named_modules() if hasattr(item[1], "get_delta_weight"))
    return {f"{name}.weight": layer for name, layer in layers}


def matrices(adapter: Any) -> Iterator[Tensor]:
    """Yield the weights that make up an adapter: what must be whole before `get_delta_weight` is called."""
    yield adapter.lora_A[ADAPTER].weight
    yield adapter.lora_B[ADAPTER].weight
