"""One process of a group that torch.distributed joins, and what such processes have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rollcage.errors import UserError
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.deepspeed_engine import join_ranks
from rollcage.trainer.models import fastest_attention, resolve_dtype


class GroupMember:
    """A rank, whose number and number of siblings are in the environment. Rank 0 opens the place where all meet."""

    def __init__(self) -> None:
        self._rank, self._world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._store: TCPStore | None = None

    def open_store(self) -> int:
        """Rank 0 only: open the place where the ranks meet, and return its port."""
        store = TCPStore(os.environ["MASTER_ADDR"], 0, self._world_size, is_master=True, wait_for_workers=False)
        self._store = store
        return int(store.port)

    def _join(self, port: int, timeout_s: float) -> str:
        """Meet the others, and return the kind of device that the ranks compute on."""
        store = self._store or TCPStore(os.environ["MASTER_ADDR"], port, self._world_size)
        join_ranks(self._rank, self._world_size, store, timeout_s)
        return "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"


def attention_kernel(config: LearnerConfig, device: str) -> str:
    """Return transformers' name of the attention kernel, for matrix products of the configured number types."""
    return fastest_attention(
        device, resolve_dtype(config.compute_dtype, device) if config.dtype == "float32" else config.dtype
    )


def compute_dtype(config: LearnerConfig, device: str) -> torch.dtype:
    """Return the number type of matrix products on a kind of device."""
    dtype = getattr(torch, resolve_dtype(config.compute_dtype, device))
    assert isinstance(dtype, torch.dtype)
    return dtype


@contextmanager
def readable(checkpoint: Path) -> Iterator[None]:
    """Turn whatever is raised into a UserError that says that ``checkpoint`` cannot be loaded."""
    try:
        yield
    except Exception as error:  # a damaged file can raise anything
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"cannot load the checkpoint {checkpoint}: {type(error).__name__}: {reason}") from error
