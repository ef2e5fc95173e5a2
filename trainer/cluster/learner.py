"""The learner on a Ray cluster: its processes are actors, ranks joined by torch.distributed under DeepSpeed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollcage.envs.placements.ray_whereabouts import Whereabouts
from rollcage.errors import UserError
from rollcage.trainer.cluster.rank_actor import RankActor
from rollcage.trainer.cluster.weights import RemoteWeights
from rollcage.trainer.engines.base import Weights
from rollcage.trainer.learner.base import LearnerDied
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.deepspeed_learner import DeepSpeedLearner
from rollcage.trainer.learner.roles import POLICY


class RayRank:
    """One rank in an actor, spoken to as one in a process is."""

    def __init__(
        self, ray: Any, role: str, rank: int, world_size: int, config: LearnerConfig, options: dict[str, Any]
    ) -> None:
        self.name = f"{role} {rank}"
        self.where: Whereabouts | None = None
        self._ray = ray
        self.actor = (
            ray.remote(RankActor)
            .options(max_restarts=0, max_task_retries=0, **options)
            .remote(role, rank, world_size, config.num_threads)
        )

    @property
    def pid(self) -> int:
        """Of the actor's process, on its node; 0 before it has started."""
        return self.where.pid if self.where else 0

    async def ask(self, method: str, *arguments: Any) -> Any:
        """Let the actor do something; raises LearnerDied where it is gone or fails."""
        try:
            return await getattr(self.actor, method).remote(*arguments)
        except self._ray.exceptions.RayError as error:
            lines = (str(error).strip() or type(error).__name__).splitlines()
            where = self.where or "that never started"
            raise LearnerDied(f"{self.name} (an actor {where}): {method}: {lines[-1]}") from None

    async def call(self, method: str, *arguments: Any) -> Any:
        """See `RankProcess`."""
        outcome, value = await self.ask("call", method, *arguments)
        if outcome == "refused":
            raise UserError(value)
        return value

    def describe_log(self) -> str:
        """Return where its output is."""
        return f" ({self.where})" if self.where else " (an actor that never started)"

    async def close(self) -> None:
        """End the actor; idempotent."""
        if self._ray.is_initialized():
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(self.actor)


class RayLearner(DeepSpeedLearner):
    """A `Learner` whose processes are actors. Rank 0 puts weights into the object store, from where engines take them.

    All nodes must see the folders of the model and of the checkpoints at the same paths.

    Args:
        ray: the module, connected.
        config, checkpoint: see `DeepSpeedLearner`.
        options: (role, rank) -> options of its actor: num_cpus, num_gpus, and where it may run.
        on_start: called with each actor's name and where its actor is, once it has started.
    """

    def __init__(
        self,
        ray: Any,
        config: LearnerConfig,
        *,
        checkpoint: Path | None = None,
        options: Callable[[str, int], dict[str, Any]] = lambda role, rank: {},
        on_start: Callable[[str, Whereabouts], None] = lambda actor, where: None,
    ) -> None:
        super().__init__(config, checkpoint=checkpoint.absolute() if checkpoint else None)
        self._ray, self._options, self._on_start = ray, options, on_start

    async def _open_ranks(self, memory: int) -> None:
        config = self._config
        groups = {
            role: [RayRank(self._ray, role, rank, num, config, self._options(role, rank)) for rank in range(num)]
            for role, num in {POLICY: config.num_ranks, **config.apart}.items()
        }
        self._groups |= {role: list(group) for role, group in groups.items()}
        ranks = [rank for group in groups.values() for rank in group]
        try:
            async with asyncio.timeout(config.start_timeout_s):
                masters = await asyncio.gather(*(group[0].ask("address") for group in groups.values()))
                of_each = [master for master, group in zip(masters, groups.values(), strict=True) for _ in group]
                places = await asyncio.gather(
                    *(rank.ask("prepare", master) for rank, master in zip(ranks, of_each, strict=True))
                )
        except TimeoutError:
            asked = ", ".join(f"{len(group)} x {role}" for role, group in groups.items())
            raise LearnerDied(f"no node had room for {asked} within {config.start_timeout_s:g} s") from None
        for rank, where in zip(ranks, places, strict=True):
            rank.where = where
            self._on_start(rank.name, where)

    async def _hand_over(self) -> Weights:
        """Let the node of rank 0 put the weights into its store, and the attention model take them from there."""
        ranks = [rank for group in (self._ranks[:1], self._attention) for rank in group if isinstance(rank, RayRank)]
        stored = await ranks[0].ask("put")
        await asyncio.gather(*(rank.ask("take", stored) for rank in ranks[1:]))
        return RemoteWeights(stored)
