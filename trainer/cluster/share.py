"""A run's share of a cluster: a part of a node for each engine replica and rank, reserved all at once or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from rollcage.errors import UserError
from rollcage.trainer.cluster.config import RayConfig
from rollcage.trainer.cluster.demands import Demand, described, live_nodes, shortfall
from rollcage.trainer.learner.roles import ATTENTION, CRITICS, POLICY

_PAUSE_S = 1.0


class Share:
    """A placement group with a bundle for each engine replica, each rank and each process that is apart from these.

    With ``config.colocate`` replicas and ranks share.

    A bundle whose node goes is placed anew by Ray as soon as a node has room for it.

    Args:
        ray: the module, connected.
        config: what each takes, and of which nodes.
        num_engines, num_ranks: how many there are.
        apart: see `LearnerConfig.apart`.
    """

    def __init__(
        self,
        ray: Any,
        config: RayConfig,
        num_engines: int,
        num_ranks: int,
        apart: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._ray, self._config = ray, config
        self._num_engines, self._num_ranks, self._apart = num_engines, num_ranks, apart
        self._group: Any = None

    @property
    def _num_both(self) -> int:
        """How many bundles hold a replica and a rank."""
        return min(self._num_engines, self._num_ranks) if self._config.colocate else 0

    @property
    def demands(self) -> list[Demand]:
        """What is asked, bundle by bundle in this order."""
        config, num_both = self._config, self._num_both
        engine = {"CPU": config.engine_cpus, "GPU": config.engine_gpus}
        rank = {"CPU": config.rank_cpus, "GPU": config.rank_gpus}
        critic = {"CPU": config.critic_cpus, "GPU": config.critic_gpus}
        attention = {"CPU": config.attention_cpus, "GPU": config.attention_gpus}
        both = {name: engine[name] + rank[name] for name in engine}
        asked = (
            Demand("engine replica and learner rank", num_both, both, config.engine_nodes),
            Demand("engine replica", self._num_engines - num_both, engine, config.engine_nodes),
            Demand(POLICY, self._num_ranks - num_both, rank, config.rank_nodes),
            Demand(CRITICS, self._apart.get(CRITICS, 0), critic, config.critic_nodes),
            Demand(ATTENTION, self._apart.get(ATTENTION, 0), attention, config.attention_nodes),
        )
        return [demand for demand in asked if demand.num]

    async def reserve(self, beside: Demand | None = None) -> None:
        """Reserve it.

        Args:
            beside: what the run asks too, without reserving it; it counts for what the cluster must have.

        Raises:
            UserError: the nodes can never give it, or others did not leave it in time.
        """
        config, now = self._config, asyncio.get_running_loop().time
        demands = [*self.demands, *([beside] if beside and beside.num else [])]
        asked = ", ".join(map(str, demands))
        end_s = now() + config.join_timeout_s
        while reason := shortfall(demands, nodes := await asyncio.to_thread(live_nodes, self._ray)):
            if now() >= end_s:
                raise UserError(
                    f"ray: the cluster can never give what is asked: {reason}. Asked: {asked}. There: "
                    f"{described(nodes)}. Ask for less (--ray.*, --num-engines, --rollout.num-slots), or start nodes "
                    "(and give them time to join: --ray.join-timeout-s)."
                )
            await asyncio.sleep(_PAUSE_S)
        bundles, labels = [], []
        for demand in self.demands:
            bundles += [{name: amount for name, amount in demand.resources.items() if amount}] * demand.num
            labels += [dict(demand.labels)] * demand.num
        if not bundles:
            return
        self._group = self._ray.util.placement_group(bundles, strategy="SPREAD", bundle_label_selector=labels)
        try:
            async with asyncio.timeout(config.place_timeout_s):
                await _awaited(self._group.ready())
        except TimeoutError:
            free = await asyncio.to_thread(self._ray.available_resources)
            self.free()
            raise UserError(
                f"ray: no room within {config.place_timeout_s:g} s for {asked}: others use the cluster, of which "
                f"{free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU are free. Wait for them "
                "(--ray.place-timeout-s), or ask for less."
            ) from None
        except BaseException:
            self.free()
            raise

    def engine(self, replica: int) -> dict[str, Any]:
        """Return the options of a replica's actor."""
        return self._options(self._config.engine_cpus, self._config.engine_gpus, replica)

    def learner(self, role: str, rank: int) -> dict[str, Any]:
        """Return the options of an actor of the learner."""
        config, num_both = self._config, self._num_both
        if role == POLICY:
            bundle = rank if rank < num_both else self._num_engines + rank - num_both
            return self._options(config.rank_cpus, config.rank_gpus, bundle)
        bundle = self._num_engines + self._num_ranks - num_both + rank
        if role == CRITICS:
            return self._options(config.critic_cpus, config.critic_gpus, bundle)
        return self._options(config.attention_cpus, config.attention_gpus, bundle + self._apart.get(CRITICS, 0))

    def _options(self, num_cpus: float, num_gpus: float, bundle: int) -> dict[str, Any]:
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            self._group, placement_group_bundle_index=bundle
        )
        return {"num_cpus": num_cpus, "num_gpus": num_gpus, "scheduling_strategy": strategy}

    def free(self) -> None:
        """Give it back, which ends the actors in it. Idempotent."""
        group, self._group = self._group, None
        if group is not None and self._ray.is_initialized():
            with suppress(self._ray.exceptions.RayError):
                self._ray.util.remove_placement_group(group)


async def _awaited(reference: Any) -> Any:
    return await reference
