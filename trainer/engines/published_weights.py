"""Weights on their way to engines in other processes of this host: memory that those read through a path."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollcage.trainer.engines.base import EngineError, Weights
from rollcage.trainer.learner.shared_weights import Layout, make_layout, map_weights, open_memory


class PublishedWeights:
    """Memory without a name that the newest weights are copied to; it is gone with its last user."""

    def __init__(self) -> None:
        self._memory: tuple[int, Layout, dict[str, Any]] | None = None
        self.policy_version: int | None = None
        """Of what was written last; None before."""

    @property
    def path(self) -> str:
        """Where processes of this user on this host find the memory."""
        return f"/proc/{os.getpid()}/fd/{self._written[0]}"

    @property
    def layout(self) -> Layout:
        """Where each weight lies in it."""
        return self._written[1]

    @property
    def tensors(self) -> Mapping[str, Any]:
        """The weights, in the layout's order."""
        return self._written[2]

    @property
    def _written(self) -> tuple[int, Layout, dict[str, Any]]:
        if self._memory is None:
            raise EngineError("no weights have been written")
        return self._memory

    async def write(self, weights: Weights, policy_version: int) -> None:
        """Copy ``weights``."""
        layout = make_layout((name, tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items())
        if self._memory is None or self._memory[1] != layout:
            self.close()
            descriptor = open_memory()
            self._memory = (descriptor, layout, map_weights(descriptor, layout))
        await asyncio.to_thread(_copy, weights, self._memory[2])
        self.policy_version = policy_version

    @contextmanager
    def probe(self) -> Iterator[tuple[str, bytes]]:
        """Yield the path of some memory of ours and what is in it: who can say that can read weights as well."""
        content = os.urandom(32)
        descriptor = open_memory()
        try:
            os.write(descriptor, content)
            yield f"/proc/{os.getpid()}/fd/{descriptor}", content
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Free the memory; idempotent."""
        if self._memory is not None:
            os.close(self._memory[0])
            self._memory = None


class ExpectedWeights:
    """Names and shapes of a model's weights, in transformers' format.

    Args:
        model: the model, as in `rollcage.trainer.models.load_config`.
    """

    def __init__(self, model: str | Path) -> None:
        import torch
        import transformers

        from rollcage.trainer.models import load_config

        with torch.device("meta"):
            skeleton = transformers.AutoModelForCausalLM.from_config(load_config(model))
        self._shapes = {name: tuple(weight.shape) for name, weight in skeleton.state_dict().items()}
        self._required = {name for name, _ in skeleton.named_parameters()}

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse weights that are not this model's, or not all of them.

        Raises:
            EngineError: it says which.
        """
        for name, shape in shapes.items():
            if name not in self._shapes:
                raise EngineError(f"publish: the model has no weight {name!r}")
            if tuple(shape) != self._shapes[name]:
                raise EngineError(f"publish: {name!r} is {list(shape)}, the model's {list(self._shapes[name])}")
        missing = sorted(self._required - shapes.keys())
        if missing:
            raise EngineError(f"publish: {len(missing)} weights are missing ({missing[0]!r}, ...)")


def _copy(weights: Weights, tensors: Mapping[str, Any]) -> None:
    for name, tensor in weights.items():
        tensors[name].copy_(tensor)
