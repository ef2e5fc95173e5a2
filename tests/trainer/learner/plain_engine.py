"""The least of a DeepSpeed engine that an update needs, in this process."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class PlainEngine:
    """Has of a DeepSpeed engine what an update needs, on one rank; plain gradient descent, whose gradients it keeps."""

    device = torch.device("cpu")

    def __init__(self, module: nn.Module, lr: float) -> None:
        self.module, self._lr = module, lr
        self.steps: list[list[Tensor]] = []

    def __call__(self, *args: Any) -> Any:
        return self.module(*args)

    def get_lr(self) -> list[float]:
        return [self._lr]

    def set_gradient_accumulation_boundary(self, is_last: bool) -> None:
        pass

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        weights = list(self.module.parameters())
        self.steps.append([weight.grad.clone() for weight in weights if weight.grad is not None])
        with torch.no_grad():
            for weight in weights:
                assert weight.grad is not None
                weight -= self._lr * weight.grad
                weight.grad = None
