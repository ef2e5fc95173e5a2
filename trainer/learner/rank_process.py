"""One rank of the learner, or of what is apart from it, as a process; and what a rank is wherever it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from rollcage.trainer.child_process import ChildProcess
from rollcage.trainer.learner.base import LearnerDied


class Rank(Protocol):
    """One rank, wherever it runs."""

    @property
    def name(self) -> str:
        """Its role and its number in that, for messages."""
        ...

    @property
    def pid(self) -> int:
        """Of its process, on its machine."""
        ...

    async def call(self, method: str, *arguments: Any) -> Any:
        """Let it run a method of what serves its role; raises LearnerDied, or the UserError that it refuses with."""
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
        role: see `roles`.
        rank: its number.
        world_size: how many there are.
        memory: descriptor of the shared weights.
        num_threads: CPU threads for its arithmetic.
        log: file that its output goes to; None: an unnamed temporary one.
        gpus: numbers of the GPUs that it sees; "": those that we see.
    """

    def __init__(
        self, role: str, rank: int, world_size: int, memory: int, num_threads: int, log: Path | None, gpus: str = ""
    ) -> None:
        self.name = f"{role} {rank}"
        super().__init__(
            self.name,
            "rollcage.trainer.learner.worker",
            died=LearnerDied,
            descriptors=[memory],
            environment={
                "ROLE": role,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size),
                "MASTER_ADDR": "127.0.0.1",
                "OMP_NUM_THREADS": str(num_threads),
                **({"CUDA_VISIBLE_DEVICES": gpus} if gpus else {}),
            },
            log=log,
        )
