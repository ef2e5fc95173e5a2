"""The learner on a Ray cluster: its ranks are actors, joined by torch.distributed under DeepSpeed."""

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


class RayRank:
    """One rank in an actor, spoken to as one in a process is."""

    def __init__(self, ray: Any, rank: int, config: LearnerConfig, options: dict[str, Any]) -> None:
        self.rank = rank
        self.where: Whereabouts | None = None
        self._ray = ray
        self.actor = (
            ray.remote(RankActor)
            .options(max_restarts=0, max_task_retries=0, **options)
            .remote(rank, config.num_ranks, config.num_threads)
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
            raise LearnerDied(f"learner rank {self.rank} (an actor {where}): {method}: {lines[-1]}") from None

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
    """A `Learner` whose ranks are actors. Rank 0 puts weights into the object store, from where engines take them.

    All nodes must see the folders of the model and of the checkpoints at the same paths.

    Args:
        ray: the module, connected.
        config, checkpoint: see `DeepSpeedLearner`.
        options: rank -> options of its actor: num_cpus, num_gpus, and where it may run.
        on_start: called with each rank's name and where its actor is, once it has started.
    """

    def __init__(
        self,
        ray: Any,
        config: LearnerConfig,
        *,
        checkpoint: Path | None = None,
        options: Callable[[int], dict[str, Any]] = lambda rank: {},
        on_start: Callable[[str, Whereabouts], None] = lambda actor, where: None,
    ) -> None:
        super().__init__(config, checkpoint=checkpoint.absolute() if checkpoint else None)
        self._ray, self._options, self._on_start = ray, options, on_start

    async def _open_ranks(self, memory: int) -> None:
        config = self._config
        ranks = [RayRank(self._ray, rank, config, self._options(rank)) for rank in range(config.num_ranks)]
        self._ranks.extend(ranks)
        try:
            async with asyncio.timeout(config.start_timeout_s):
                master = await ranks[0].ask("address")
                places = await asyncio.gather(*(rank.ask("prepare", master) for rank in ranks))
        except TimeoutError:
            raise LearnerDied(
                f"no node had room for the learner's {config.num_ranks} ranks within {config.start_timeout_s:g} s"
            ) from None
        for rank, where in zip(ranks, places, strict=True):
            rank.where = where
            self._on_start(f"learner rank {rank.rank}", where)

    async def publish(self) -> Weights:
        """Return the current weights, in the object store of rank 0's node."""
        await self._call("publish", timeout_s=self._config.call_timeout_s)
        rank = self._ranks[0]
        assert isinstance(rank, RayRank)
        return RemoteWeights(await rank.ask("put"))
