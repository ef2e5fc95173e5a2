"""Weights by a collective: a group of the trainer (rank 0) and the processes of one replica, and broadcasts in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from rollcage.trainer.engines.base import EngineError
from rollcage.trainer.learner.shared_weights import Entry


class WeightsGroup:
    """Broadcasts from rank 0. Beside torch's default group, which the learner's ranks and vLLM have for themselves.

    Only gloo has been run; nccl needs a GPU for rank 0 too, one that no other member has.

    Args:
        store: where the members find each other.
        rank: of this process; the trainer's is 0.
        size: members.
        backend: "gloo" or "nccl".
        host: this process's address towards the others.
        timeout_s: longest wait for the others, here and in a broadcast.
    """

    def __init__(self, store: Any, rank: int, size: int, *, backend: str, host: str, timeout_s: float) -> None:
        dist: Any = distributed  # these classes are there, and not in torch's types
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")
        if backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timedelta(seconds=timeout_s)
            self._group: Any = dist.ProcessGroupNCCL(store, rank, size, options)
            return
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        options._timeout = timedelta(seconds=timeout_s)
        self._group = dist.ProcessGroupGloo(store, rank, size, options)

    def send(self, weights: Iterable[torch.Tensor]) -> None:
        """Broadcast each weight.

        Raises:
            EngineError: a member is gone, or did not come in time.
        """
        for weight in weights:
            self._broadcast(weight.detach().to(self._device).contiguous())

    def receive(self, entries: Iterable[Entry]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, weight) as they come, each in memory of its own."""
        for name, shape, dtype, _ in entries:
            weight = torch.empty(shape, dtype=getattr(torch, dtype), device=self._device)
            self._broadcast(weight)
            yield name, weight

    def _broadcast(self, weight: torch.Tensor) -> None:
        try:
            self._group.broadcast(weight.reshape(-1).view(torch.uint8), 0).wait()
        except RuntimeError as error:
            raise EngineError(f"the broadcast of weights broke off: {' '.join(str(error).split())[:300]}") from error


def open_store(host: str, port: int, *, timeout_s: float) -> Any:
    """Return the store at an address, where port 0 makes it: its attribute ``port`` says where others find it."""
    dist: Any = distributed
    limit = timedelta(seconds=timeout_s)
    try:
        return dist.TCPStore(host, port, None, port == 0, timeout=limit, wait_for_workers=False)
    except (RuntimeError, ValueError) as error:
        raise EngineError(f"no way to share weights at {host}: {' '.join(str(error).split())[:300]}") from error
