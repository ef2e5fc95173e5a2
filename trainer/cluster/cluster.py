"""The parts of a run that are actors on a Ray cluster; what drives them is the same as on one machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from rollcage.envs.placements.ray_connection import connect, disconnect
from rollcage.errors import UserError, require
from rollcage.trainer.cluster.config import RayConfig
from rollcage.trainer.cluster.engine import RayEngine
from rollcage.trainer.cluster.learner import RayLearner
from rollcage.trainer.cluster.weights import WeightStore
from rollcage.trainer.engines.base import Engine
from rollcage.trainer.engines.config import EngineConfig
from rollcage.trainer.learner.base import Learner
from rollcage.trainer.learner.config import LearnerConfig


class RayCluster:
    """Makes a run's engines and learner on a cluster. They end when they are closed, or this process ends.

    Args:
        ray: the module, connected.
        config: shares of the nodes.
    """

    def __init__(self, ray: Any, config: RayConfig) -> None:
        self._ray, self._config = ray, config
        self._is_ours = False
        self.weights = WeightStore()

    @classmethod
    async def connect(cls, address: str, config: RayConfig) -> RayCluster:
        """Connect this process; see `rollcage.envs.placements.ray_connection.connect`.

        Raises:
            UserError: no cluster answers.
        """
        ray = require("ray", "ray")
        was_connected = ray.is_initialized()
        cluster = cls(await asyncio.to_thread(connect, address), config)
        cluster._is_ours = not was_connected
        return cluster

    async def close(self) -> None:
        """End the connection, where this made it: no actor of this process is left then. Idempotent."""
        if self._is_ours:
            self._is_ours = False
            await asyncio.to_thread(disconnect)

    def engines(self, config: EngineConfig, num_engines: int) -> list[Engine]:
        """Return replicas, not started, which spread over the nodes."""
        return [
            RayEngine(
                self._ray,
                config,
                replica,
                self.weights,
                self._options(self._config.engine_cpus, self._config.engine_gpus),
                ping_timeout_s=self._config.ping_timeout_s,
            )
            for replica in range(num_engines)
        ]

    def learner(self, config: LearnerConfig, *, checkpoint: Path | None) -> Learner:
        """Return a learner, not started.

        Raises:
            UserError: several ranks with GPUs, which is not there yet.
        """
        if self._config.rank_gpus and config.num_ranks > 1:
            raise UserError("ray.rank_gpus goes with learner.num_ranks 1: several ranks run on CPUs only, so far.")
        options = self._options(self._config.rank_cpus, self._config.rank_gpus)
        return RayLearner(self._ray, config, checkpoint=checkpoint, options=options)

    def _options(self, num_cpus: float, num_gpus: float) -> dict[str, Any]:
        return {"num_cpus": num_cpus, "num_gpus": num_gpus, "scheduling_strategy": "SPREAD"}
