"""A model's weights in memory that two processes share through a descriptor: without a name, nothing is left behind."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

ALIGNMENT_BYTES = 64


class Entry(NamedTuple):
    """Where one weight lies in the block: its shape, the name of its torch dtype, and its offset in bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int


class Layout(NamedTuple):
    """Where every weight lies, and the size of the block in bytes."""

    entries: tuple[Entry, ...]
    num_bytes: int


def open_memory() -> int:
    """Return a descriptor of anonymous shared memory, empty at first; the kernel frees it with its last user."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("rollcage-weights")
    with tempfile.TemporaryFile() as file:  # not Linux: a file without a name
        return os.dup(file.fileno())


def make_layout(weights: Iterable[tuple[str, tuple[int, ...], torch.dtype]]) -> Layout:
    """Lay out weights, given by name, shape and dtype, one behind the other."""
    entries, end = [], 0
    for name, shape, dtype in weights:
        entries.append(Entry(name, shape, str(dtype).removeprefix("torch."), end))
        num_bytes = math.prod(shape) * dtype.itemsize
        end += -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return Layout(tuple(entries), end)


def map_weights(descriptor: int, layout: Layout) -> dict[str, Tensor]:
    """Return name -> tensor that looks straight into the memory behind ``descriptor`` (which may be closed then)."""
    if os.fstat(descriptor).st_size < layout.num_bytes:
        os.ftruncate(descriptor, layout.num_bytes)
    block = mmap.mmap(descriptor, layout.num_bytes)
    weights = {}
    for name, shape, dtype_name, offset in layout.entries:
        dtype = getattr(torch, dtype_name)
        weights[name] = torch.frombuffer(block, dtype=dtype, count=math.prod(shape), offset=offset).view(shape)
    return weights
