"""Runs on a real Ray cluster of several nodes: the batches of one machine, and nothing lost when a node goes."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from tests.ray_cluster import RayNodes, ray_nodes
from tests.trainer.cluster.ray_parts import Done, ScriptedConfig, train_scripted

from rollcage.trainer.cluster.cluster import RayCluster
from rollcage.trainer.cluster.config import RayConfig
from rollcage.trainer.cluster.engine import RayEngine
from rollcage.trainer.cluster.weights import WeightStore, put, unpack
from rollcage.trainer.engines.base import Engine, EngineDied
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.types import Request, Sampling

__all__ = ["ray_nodes"]

LITTLE = RayConfig(engine_cpus=0.1, rank_cpus=0.1, ping_timeout_s=2.0)
ROLLOUT = RolloutConfig(num_groups=2, group_size=3, num_slots=6, async_ratio=0.0)


def engines(ray_nodes: RayNodes, num_engines: int, **options: Any) -> tuple[list[Engine], WeightStore]:
    cluster = asyncio.run(RayCluster.connect(ray_nodes.address, LITTLE))
    return cluster.engines(ScriptedConfig(model="scripted", **options), num_engines), cluster.weights


def test_with_alpha_0_the_batches_are_those_of_one_machine(ray_nodes: RayNodes) -> None:
    replicas, _ = engines(ray_nodes, 2)
    there = train_scripted(replicas, "ray", ROLLOUT, num_updates=3)
    here = train_scripted([ScriptedConfig().make() for _ in range(2)], "inline", ROLLOUT, num_updates=3)
    assert len(there.batches) == len(here.batches) == 3
    for ours, theirs in zip(there.batches, here.batches, strict=True):
        for field in fields(ours):
            np.testing.assert_array_equal(getattr(ours, field.name), getattr(theirs, field.name), err_msg=field.name)
    assert any(batch.turns.max() == 2 for batch in here.batches), "episodes of several turns"


@pytest.mark.timeout(300)
def test_a_node_killed_in_mid_step_costs_its_own_samples_and_the_run_goes_on(ray_nodes: RayNodes) -> None:
    import ray

    node = ray_nodes.add(there=1)
    replicas, store = engines(ray_nodes, 2, token_s=0.03)
    options = {"num_cpus": 0.1, "resources": {"there": 0.1}}
    replicas.append(
        RayEngine(ray, ScriptedConfig(model="scripted", token_s=0.03), 2, store, options, ping_timeout_s=2.0)
    )
    num_left: list[int] = []

    async def kill(done: Done, router: Router) -> None:
        while len(done.batches) < 1:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(ray_nodes.kill, node)
        while router.num_live_engines == 3:
            await asyncio.sleep(0.05)
        num_left.append(router.num_live_engines)
        ray_nodes.add(there=1)  # Ray starts nodes from the main thread only
        while router.num_live_engines < 3:
            await asyncio.sleep(0.05)

    config = RolloutConfig(num_groups=2, group_size=3, num_slots=8, async_ratio=1.0)
    done = train_scripted(replicas, "ray", config, num_updates=12, disturb=kill, num_workers=8)
    account, full = done.progress.account, 12 * 2 * 3
    account.check(0)
    assert full - account.failed.total() <= account.trained <= full, "a member that failed twice is left out"
    assert num_left == [2], "and then a replica took the place of the lost one, on a node that joined"
    failed = set(account.failed)
    assert failed
    assert failed <= {"infra/env_died", "infra/engine_died"}


@pytest.mark.timeout(300)
def test_a_replica_that_hangs_is_found_out_replaced_and_given_the_newest_weights(ray_nodes: RayNodes) -> None:
    [engine], store = engines(ray_nodes, 1, token_s=0.2)
    assert isinstance(engine, RayEngine)

    async def main() -> None:
        request = Request("r", [1, 2], Sampling(16), seed=1)
        await engine.start()
        await engine.publish({"w": torch.ones(3)}, 5)
        hung = engine.pid
        generating = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(0.5)
        os.kill(hung, signal.SIGSTOP)
        try:
            with pytest.raises(EngineDied, match="no answer within 2 s"):
                await asyncio.wait_for(generating, 20.0)
        finally:
            os.kill(hung, signal.SIGKILL)
        await engine.restart()
        assert engine.pid != hung
        generation = await engine.generate(request)
        assert set(generation.policy_versions) == {5}
        await engine.close()
        with pytest.raises(EngineDied):
            await engine.generate(request)

    asyncio.run(main())
    assert store.num_bytes == 64, "they lay in the store already"


def test_weights_go_into_the_store_once_a_version_whoever_asks(ray_nodes: RayNodes) -> None:
    import ray

    weights = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1.5], dtype=torch.bfloat16), "c": torch.zeros(0)}
    store = WeightStore()
    stored = [store.put(weights, 1) for _ in range(4)]
    assert {id(each.reference) for each in stored} == {id(stored[0].reference)}
    num_bytes = store.num_bytes
    again = unpack(ray.get(stored[0].reference), stored[0].layout)
    assert {name: (w.dtype, w.tolist()) for name, w in again.items()} == {
        name: (w.dtype, w.tolist()) for name, w in weights.items()
    }
    store.put(weights, 2)
    assert store.num_bytes == 2 * num_bytes
    assert put(weights).layout == stored[0].layout
