"""Weights on their way through Ray's object store: put there once a version, and fetched once by every node."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rollcage.trainer.engines.base import Weights
from rollcage.trainer.learner.shared_weights import Layout, make_layout


class StoredWeights(NamedTuple):
    """Weights in the object store.

    Attributes:
        reference: Ray's reference to the block; whoever holds it keeps the block.
        layout: where each weight lies in it.
    """

    reference: Any
    layout: Layout


class RemoteWeights(Mapping[str, Tensor]):
    """Weights that some node has put into the store: engines on the cluster take them from there.

    Whoever reads them here fetches them to this node, once.
    """

    def __init__(self, stored: StoredWeights) -> None:
        self.stored = stored
        self._fetched: dict[str, Tensor] | None = None

    def _here(self) -> dict[str, Tensor]:
        if self._fetched is None:
            import ray

            self._fetched = unpack(ray.get(self.stored.reference), self.stored.layout.entries)
        return self._fetched

    def __getitem__(self, name: str) -> Tensor:
        return self._here()[name]

    def __iter__(self) -> Iterator[str]:
        return (entry.name for entry in self.stored.layout.entries)

    def __len__(self) -> int:
        return len(self.stored.layout.entries)


class WeightStore:
    """Puts each version into the store once, however many engines ask for it, and lets go of the one before.

    Args:
        on_bytes: called with the size of each version that is put there, in whichever thread asks for it.

    Attributes:
        num_bytes: put there so far.
        newest: what was put last, and its policy version; None before.
    """

    def __init__(self, on_bytes: Callable[[int], None] = lambda num_bytes: None) -> None:
        self.num_bytes = 0
        self._on_bytes = on_bytes
        self.newest: tuple[StoredWeights, int] | None = None
        self._lock = threading.Lock()

    def put(self, weights: Weights, policy_version: int) -> StoredWeights:
        """Return ``weights`` in the store; blocks while they are copied. May be called from several threads."""
        with self._lock:
            if self.newest is None or policy_version != self.newest[1]:
                stored = weights.stored if isinstance(weights, RemoteWeights) else put(weights)
                self.num_bytes += stored.layout.num_bytes
                self._on_bytes(stored.layout.num_bytes)
                self.newest = stored, policy_version
            return self.newest[0]


def put(weights: Weights) -> StoredWeights:
    """Copy weights into the store of this node."""
    import ray

    layout = make_layout((name, tuple(weight.shape), weight.dtype) for name, weight in weights.items())
    block = np.empty(layout.num_bytes, np.uint8)
    for entry in layout.entries:
        flat = weights[entry.name].detach().contiguous().flatten().view(torch.uint8).numpy()
        block[entry.offset : entry.offset + flat.size] = flat
    return StoredWeights(ray.put(block), layout)


def unpack(
    block: np.ndarray[Any, np.dtype[np.uint8]], entries: Iterable[tuple[str, tuple[int, ...], str, int]]
) -> dict[str, Tensor]:
    """Return name -> tensor that looks into the block, which is shared by all of a node: to be read only.

    Args:
        block: the bytes.
        entries: name, shape, dtype and offset of each weight, as in `Layout`.
    """
    weights = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch knows no tensor that cannot be written
        for name, shape, dtype_name, offset in entries:
            dtype = getattr(torch, dtype_name)
            num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            weights[name] = torch.from_numpy(block[offset : offset + num_bytes]).view(dtype).view(shape)
    return weights
