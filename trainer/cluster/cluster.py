"""The parts of a run that are actors on a Ray cluster; what drives them is the same as on one machine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rollcage.envs.placements import EnvConfig, Placement, make_placement
from rollcage.envs.placements.ray_actor import RayHost
from rollcage.envs.placements.ray_connection import connect, disconnect
from rollcage.envs.placements.ray_whereabouts import Whereabouts
from rollcage.errors import UserError, require
from rollcage.recorder import NullRecorder, Recorder
from rollcage.trainer.cluster.actor_logs import ActorLogs
from rollcage.trainer.cluster.config import RayConfig
from rollcage.trainer.cluster.demands import Demand, live_nodes
from rollcage.trainer.cluster.engine import RayEngine
from rollcage.trainer.cluster.engine_actor import EngineMaker
from rollcage.trainer.cluster.learner import RayLearner
from rollcage.trainer.cluster.node_watch import NodeWatch
from rollcage.trainer.cluster.sandbox_hosts import SandboxHosts, docker_endpoints
from rollcage.trainer.cluster.share import Share
from rollcage.trainer.cluster.weights import WeightStore
from rollcage.trainer.engines.base import Engine
from rollcage.trainer.learner.base import Learner
from rollcage.trainer.learner.config import LearnerConfig
from rollcage.trainer.learner.roles import CRITICS

ROLES = {"learner": "rank"}
"""Of actors, by the first word of their names, where it is another."""


class RayCluster:
    """Makes a run's engines, learner and environments on a cluster. They end with it, or with this process.

    Args:
        ray: the module, connected.
        config: shares of the nodes.
        share: what is reserved of them.
        sandboxes: the hosts of sandboxes.
        recorder: is told of nodes, where each actor is (event ``actor_started``, gauge ``cluster_actors``), and of the
            bytes that go between them (counters ``trajectory_bytes`` and ``weight_bytes``).
        logs: what actors write.
    """

    def __init__(
        self,
        ray: Any,
        config: RayConfig,
        share: Share,
        sandboxes: SandboxHosts,
        recorder: Recorder,
        logs: ActorLogs,
    ) -> None:
        self._ray, self._config, self._share, self._sandboxes = ray, config, share, sandboxes
        self._recorder, self._logs = recorder, logs
        self._watch = NodeWatch(ray, recorder, logs)
        self._places: dict[str, str] = {}
        self._environments: dict[int, RayHost] = {}
        self._is_ours = False
        self.weights = WeightStore(partial(recorder.counter, "weight_bytes"))

    @classmethod
    async def connect(
        cls,
        address: str,
        config: RayConfig,
        *,
        num_engines: int,
        num_ranks: int,
        apart: Mapping[str, int] = MappingProxyType({}),
        num_envs: int = 0,
        folder: Path = Path("sandboxes"),
        logs: Path | None = None,
        recorder: Recorder | None = None,
    ) -> RayCluster:
        """Connect this process, and reserve what the run needs.

        Args:
            address: see `rollcage.envs.placements.ray_connection.connect`.
            config: shares of the nodes.
            num_engines, num_ranks, apart: to reserve; see `Share`.
            num_envs: environments in actors, at most; they are not reserved.
            folder: of the sandbox manager, where there is need for one.
            logs: the folder that what actors write is brought into, as NAME.log; None: it stays on their nodes.
            recorder: see the class.

        Raises:
            UserError: no cluster answers, or it has no room.
        """
        ray = require("ray", "ray")
        was_connected = ray.is_initialized()
        await asyncio.to_thread(connect, address)
        recorder = recorder or NullRecorder()
        hosts, share = SandboxHosts(folder, recorder), Share(ray, config, num_engines, num_ranks, apart)
        cluster = cls(ray, config, share, hosts, recorder, ActorLogs(logs))
        cluster._is_ours = not was_connected
        try:
            hosts.endpoints = docker_endpoints(await asyncio.to_thread(live_nodes, ray))
            await share.reserve(Demand("environment", num_envs, {"CPU": config.env_cpus}, config.env_nodes))
            await cluster._watch.start()
        except BaseException:
            await cluster.close()
            raise
        return cluster

    async def close(self) -> None:
        """End it all, and the connection where this made it: no actor of this is left then. Idempotent."""
        try:
            await self._watch.close()
            await self._sandboxes.close()
        finally:
            self._share.free()
            if self._is_ours:
                self._is_ours = False
                await asyncio.to_thread(disconnect)

    def engines(self, config: EngineMaker, num_engines: int) -> list[Engine]:
        """Return replicas, not started, in what is reserved for them."""
        recorder = self._recorder
        return [
            RayEngine(
                self._ray,
                config,
                replica,
                self.weights,
                self._share.engine(replica),
                ping_timeout_s=self._config.ping_timeout_s,
                on_start=self._tell,
                on_bytes=partial(recorder.counter, "trajectory_bytes", engine=str(replica)),
            )
            for replica in range(num_engines)
        ]

    def learner(self, config: LearnerConfig, *, checkpoint: Path | None) -> Learner:
        """Return a learner, not started.

        Raises:
            UserError: several ranks with GPUs, which is not there yet, or what goes with one machine only.
        """
        if self._config.rank_gpus and config.num_ranks > 1:
            raise UserError("ray.rank_gpus goes with learner.num_ranks 1: several ranks run on CPUs only, so far.")
        if self._config.critic_gpus and config.apart.get(CRITICS, 0) > 1:
            raise UserError("ray.critic_gpus goes with learner.critic.num_ranks 1: several run on CPUs only, so far.")
        if config.critic.gpus:
            raise UserError("learner.critic.gpus is for one machine: on a cluster give ray.critic_gpus.")
        return RayLearner(self._ray, config, checkpoint=checkpoint, options=self._share.learner, on_start=self._tell)

    async def place(self, kind: str, env: EnvConfig, *, num_workers: int | None, restart: str) -> Placement:
        """Return a placement: "process" means actors here, and "sandbox" the cluster's hosts, where it reports any.

        Raises:
            UserError: see `make_placement`.
        """
        if kind in ("process", "ray"):
            return make_placement(
                "ray",
                env,
                num_workers=num_workers,
                restart=restart,
                num_cpus=self._config.env_cpus,
                labels=self._config.env_nodes,
                on_start=self._tell,
                seats=self._environments,
            )
        if kind == "sandbox" and self._sandboxes.endpoints:
            return await self._sandboxes.place(env, num_workers=num_workers, restart=restart)
        return make_placement(kind, env, num_workers=num_workers, restart=restart)

    def _tell(self, actor: str, where: Whereabouts) -> None:
        node = self._watch.name(where.node_id, where.node)
        file = self._logs.follow(actor, where)
        self._recorder.event("actor_started", actor=actor, node=node, pid=where.pid, log=where.log, file=file)
        nodes = {node, self._places.get(actor, node)}
        self._places[actor] = node
        kind = actor.split()[0]
        for name in nodes:
            num = sum(its == name and other.split()[0] == kind for other, its in self._places.items())
            self._recorder.gauge("cluster_actors", num, node=name, role=ROLES.get(kind, kind))
