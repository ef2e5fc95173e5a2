"""One rank of the learner as a process of its own, and what a rank is wherever it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from rollcage.trainer.child_process import ChildProcess
from rollcage.trainer.learner.base import LearnerDied


class Rank(Protocol):
    """One rank, wherever it runs."""

    @property
    def rank(self) -> int:
        """Its number."""
        ...

    @property
    def pid(self) -> int:
        """Of its process, on its machine."""
        ...

    async def call(self, method: str, *arguments: Any) -> Any:
        """Let it run a method of `DeepSpeedRank`; raises LearnerDied, or the UserError that it refuses with."""
        ...

    def describe_log(self) -> str:
        """Return the end of its output, or where that is, for an error message."""
        ...

    async def close(self) -> None:
        """End it; idempotent."""
        ...


class RankProcess(ChildProcess):
    """Starts ``python -m rollcage.trainer.learner.worker``.

    Args:
        rank: its number.
        world_size: how many there are.
        memory: descriptor of the shared weights.
        num_threads: CPU threads for its arithmetic.
        log: file that its output goes to; None: an unnamed temporary one.
    """

    def __init__(self, rank: int, world_size: int, memory: int, num_threads: int, log: Path | None) -> None:
        self.rank = rank
        super().__init__(
            f"learner rank {rank}",
            "rollcage.trainer.learner.worker",
            died=LearnerDied,
            descriptors=[memory],
            environment={
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "OMP_NUM_THREADS": str(num_threads),
            },
            log=log,
        )
