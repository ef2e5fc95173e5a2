"""Runs on a real Ray cluster of several nodes: the batches of one machine, and nothing lost when a node goes."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.ray_cluster import RayNodes
from tests.trainer.cluster import probe
from tests.trainer.cluster.ray_parts import Done, train_scripted
from tests.trainer.cluster.scripted_config import ScriptedConfig

from rollcage.trainer.cluster.cluster import RayCluster
from rollcage.trainer.cluster.config import RayConfig
from rollcage.trainer.cluster.demands import live_nodes
from rollcage.trainer.cluster.engine import RayEngine
from rollcage.trainer.cluster.weights import WeightStore, put, unpack
from rollcage.trainer.engines.base import EngineDied
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.types import Request, Sampling

LITTLE = RayConfig(engine_cpus=0.1, rank_cpus=0.1, ping_timeout_s=2.0)


def test_with_alpha_0_the_batches_are_those_of_one_machine(ray_nodes: RayNodes) -> None:
    rollout = RolloutConfig(num_groups=2, group_size=3, num_slots=3, async_ratio=0.0)
    there = train_scripted([(LITTLE, 2)], ScriptedConfig(), rollout, num_updates=3)
    here = train_scripted([], ScriptedConfig(), rollout, num_updates=3)
    assert len(there.batches) == len(here.batches) == 3
    for ours, theirs in zip(there.batches, here.batches, strict=True):
        for field in fields(ours):
            np.testing.assert_array_equal(getattr(ours, field.name), getattr(theirs, field.name), err_msg=field.name)
    assert any(batch.turns.max() == 2 for batch in here.batches), "episodes of several turns"


def test_a_node_killed_in_mid_step_costs_its_own_samples_and_the_run_goes_on(
    ray_nodes: RayNodes, tmp_path: Path
) -> None:
    nodes = [ray_nodes.add(there="1")]
    num_left: list[int] = []

    async def kill(done: Done, router: Router) -> None:
        while len(done.batches) < 1:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(ray_nodes.kill, nodes.pop())
        while router.num_live_engines == 3:
            await asyncio.sleep(0.05)
        num_left.append(router.num_live_engines)
        nodes.append(ray_nodes.add(there="1"))  # Ray starts nodes from the main thread only
        while router.num_live_engines < 3:
            await asyncio.sleep(0.05)

    config = RolloutConfig(num_groups=2, group_size=3, num_slots=4, async_ratio=1.0)
    shares = [
        (replace(LITTLE, engine_nodes={label: it}), num) for label, it, num in (("kind", "head", 2), ("there", "1", 1))
    ]
    try:
        done = train_scripted(shares, ScriptedConfig(token_s=0.03), config, num_updates=6, logs=tmp_path, disturb=kill)
    finally:
        ray_nodes.kill(nodes.pop())
    account, full = done.progress.account, 6 * 2 * 3
    account.check(0)
    assert full - account.failed.total() <= account.trained <= full, "a member that failed twice is left out"
    assert num_left == [2], "and then a replica took the place of the lost one, on a node that joined"
    failed = set(account.failed)
    assert failed
    assert failed <= {"infra/env_died", "infra/engine_died"}
    started = done.events.of("actor_started")
    engines = [row for row in started if row["actor"].startswith("engine")]
    assert len({row["pid"] for row in engines}) == len(engines) == 4
    assert {row["actor"] for row in started} >= {f"environment {number}" for number in range(4)}
    [died] = done.events.of("engine_died")
    assert any(f"process {row['pid']}, log {row['log']}" in died["message"] for row in engines)
    [lost] = {row["node"] for row in done.events.of("node_lost")}
    assert any("there=1" in row["what"] for row in done.events.of("node_joined"))
    for row in started:
        assert f"--- {row['actor']} on" in (tmp_path / row["file"]).read_text()
    assert any("its node has gone" in path.read_text() for path in tmp_path.iterdir())
    places = {row["node"] for row in started}
    assert lost in places
    assert places <= {row["node"] for row in done.events.of("node_joined")}, "each node has one name"
    assert {labels["node"] for name, labels in done.events.gauges if name == "node_load"} >= places


def test_a_replica_that_hangs_is_found_out_replaced_and_given_the_newest_weights(ray_nodes: RayNodes) -> None:
    async def main() -> None:
        cluster = await RayCluster.connect("", LITTLE, num_engines=1, num_ranks=0)
        [engine] = cluster.engines(ScriptedConfig(token_s=0.2), 1)
        assert isinstance(engine, RayEngine)
        request = Request("r", [1, 2], Sampling(16), seed=1)
        await engine.start()
        await engine.publish({}, 5)
        stored = cluster.weights.newest
        assert engine.where is not None
        hung = engine.where.pid
        generating = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(0.5)
        os.kill(hung, signal.SIGSTOP)
        try:
            with pytest.raises(EngineDied, match="no answer within 2 s"):
                await asyncio.wait_for(generating, 20.0)
        finally:
            os.kill(hung, signal.SIGKILL)
        await engine.restart()
        assert engine.where.pid != hung
        generation = await engine.generate(request)
        assert set(generation.policy_versions) == {5}
        assert cluster.weights.newest is stored, "they lay in the store already"
        await engine.close()
        with pytest.raises(EngineDied):
            await engine.generate(request)
        await cluster.close()

    asyncio.run(main())


def test_weights_are_once_in_the_store_of_each_node_whoever_asks(ray_nodes: RayNodes) -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    weights = {
        "a": torch.arange(6.0).view(2, 3),
        "b": torch.tensor([1.5], dtype=torch.bfloat16),
        "c": torch.zeros(0),
        "d": torch.ones(1 << 18),
    }
    store = WeightStore()
    stored = [store.put(weights, 1) for _ in range(4)]
    assert {id(each.reference) for each in stored} == {id(stored[0].reference)}
    num_bytes = store.num_bytes
    again = unpack(ray.get(stored[0].reference), stored[0].layout.entries)
    assert {name: (w.dtype, w.tolist()) for name, w in again.items()} == {
        name: (w.dtype, w.tolist()) for name, w in weights.items()
    }
    nodes = {node.id for node in live_nodes(ray)}
    readers = [
        ray.remote(probe.num_bytes).options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        )
        for node in nodes
    ]
    read = ray.get([reader.remote(stored[0].reference) for reader in readers for _ in range(3)], timeout=60)
    assert read == [stored[0].layout.num_bytes] * 6
    [copies] = ray.experimental.get_object_locations([stored[0].reference]).values()
    assert sorted(copies["node_ids"]) == sorted(nodes), "one copy a node, of six readers"
    store.put(weights, 2)
    assert store.num_bytes == 2 * num_bytes
    assert put(weights).layout == stored[0].layout
