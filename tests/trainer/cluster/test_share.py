"""What a run asks of a cluster: reserved at once, split or shared, refused where it can never be had."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.ray_cluster import RayNodes
from tests.trainer.cluster.probe import Probe

from rollcage.errors import UserError
from rollcage.trainer.cluster.config import RayConfig
from rollcage.trainer.cluster.demands import Demand, Node, live_nodes, shortfall
from rollcage.trainer.cluster.packing import pack_generation, pack_request, unpack_generation, unpack_request
from rollcage.trainer.cluster.share import Share
from rollcage.trainer.config import TrainConfig
from rollcage.trainer.types import Generation, Request, Sampling

NODES = [
    Node("a", "10.0.0.1", {"CPU": 4.0}, {}),
    Node("b", "10.0.0.2", {"CPU": 8.0, "GPU": 2.0}, {"kind": "big", "ray.io/node-id": "b"}),
]


@pytest.mark.parametrize(
    ("demands", "reason"),
    [
        ([Demand("engine", 2, {"CPU": 1.0, "GPU": 1.0})], ""),
        ([Demand("engine", 4, {"GPU": 0.5}, {"kind": "big"})], ""),
        ([Demand("engine", 3, {"GPU": 0.9})], "3 x engine (0.9 GPU each), where there is room for 2"),
        ([Demand("engine", 1, {"CPU": 9.0})], "1 x engine (9 CPU each), where there is room for 0"),
        (
            [Demand("engine", 1, {"CPU": 1.0}, {"kind": "small"})],
            "1 x engine (1 CPU each on nodes with kind=small), where there is room for 0",
        ),
        ([Demand("engine", 1, {"GPU": 1.5}), Demand("rank", 1, {"GPU": 1.0})], "2.5 GPU together, of 2"),
        ([Demand("engine", 4, {"CPU": 2.0}, {"kind": "big"}), Demand("rank", 4, {"CPU": 1.0})], ""),
        ([Demand("engine", 4, {"CPU": 2.0}), Demand("rank", 5, {"CPU": 1.0})], "13 CPU together, of 12"),
    ],
)
def test_what_empty_nodes_could_never_hold(demands: list[Demand], reason: str) -> None:
    assert shortfall(demands, NODES) == reason


def test_what_can_never_be_had_is_refused_at_once_with_what_there_is(ray_nodes: RayNodes) -> None:
    import ray

    config = RayConfig(engine_cpus=0.5, engine_gpus=2.0, engine_nodes={"kind": "head"})
    begin_s = time.monotonic()
    with pytest.raises(UserError, match="can never give") as refused:
        asyncio.run(Share(ray, config, 2, 1).reserve())
    assert time.monotonic() - begin_s < 5.0
    told = str(refused.value)
    assert "2 x engine replica (0.5 CPU, 2 GPU each on nodes with kind=head), where there is room for 0" in told
    assert "1 x learner rank (1 CPU each)" in told
    assert "(1 CPU, 1 GPU; " in told
    assert "\n" not in told


class Waiting:
    """As much of ray as `Share` needs where nothing is reserved; its second node joins at the second look."""

    def __init__(self) -> None:
        self.num_looks = 0

    def nodes(self) -> list[dict[str, Any]]:
        self.num_looks += 1
        node = {"NodeID": "a", "NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": {"CPU": 1.0}}
        return [node] * min(self.num_looks, 2)


def test_nodes_may_be_given_time_to_join() -> None:
    demand = Demand("environment", 2, {"CPU": 1.0})
    with pytest.raises(UserError, match="room for 1"):
        asyncio.run(Share(Waiting(), RayConfig(), 0, 0).reserve(demand))
    ray = Waiting()
    asyncio.run(Share(ray, RayConfig(join_timeout_s=30.0), 0, 0).reserve(demand))
    assert ray.num_looks == 2


def places(ray: Any, options: list[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    probes = [ray.remote(Probe).options(**each).remote() for each in options]
    found = ray.get([probe.place.remote() for probe in probes], timeout=60)
    for probe in probes:
        ray.kill(probe)
    return found


def test_gpus_are_split_between_rollout_and_training_or_used_by_both(ray_nodes: RayNodes) -> None:
    import ray

    [head] = [node.id for node in live_nodes(ray) if node.labels.get("kind") == "head"]

    async def split() -> None:
        one = RayConfig(engine_cpus=0.1, engine_gpus=1.0, engine_nodes={"kind": "head"}, rank_cpus=0.1, rank_gpus=1.0)
        share = Share(ray, one, 1, 1)
        await share.reserve()
        (engine_node, engine_gpus), (rank_node, rank_gpus) = await asyncio.to_thread(
            places, ray, [share.engine(0), share.learner("learner rank", 0)]
        )
        assert engine_node == head, "by its label"
        assert rank_node != head, "each node has one GPU"
        assert len(engine_gpus) == len(rank_gpus) == 1
        other = RayConfig(engine_cpus=0.1, engine_gpus=0.5, place_timeout_s=0.5)
        with pytest.raises(UserError, match=r"no room within 0.5 s for 1 x engine replica .* and 0 GPU are free"):
            await Share(ray, other, 1, 0).reserve()
        share.free()
        share.free()

    async def both() -> None:
        half = RayConfig(engine_cpus=0.1, engine_gpus=0.5, rank_cpus=0.1, rank_gpus=0.5, colocate=True)
        share = Share(ray, half, 2, 1)
        await share.reserve()
        assert len(share.demands) == 2
        engine, rank = await asyncio.to_thread(places, ray, [share.engine(0), share.learner("learner rank", 0)])
        assert engine == rank
        assert len(rank[1]) == 1
        share.free()

    asyncio.run(split())
    asyncio.run(both())


def test_impossible_shares_are_refused_before_anything_starts() -> None:
    with pytest.raises(UserError) as refused:
        TrainConfig("small", cluster="ray", ray=RayConfig(rank_cpus=0.0, colocate=True, rank_nodes={"a": "b"}))
    assert "ray.rank_cpus or rank_gpus must be above 0" in str(refused.value)
    assert "ray.colocate goes with engine_nodes and rank_nodes that are the same" in str(refused.value)


def test_what_goes_to_an_engine_and_back_is_compact_and_exact() -> None:
    request = Request("r", [5, 70_000, 3], Sampling(8, 0.5), 2**62, frozenset({2}), "g", "g.1")
    assert unpack_request(pack_request(request)) == request
    generation = Generation([7, 2**20, 2], [-0.5, -1.25, 0.0], [3, 3, 4], "stop")
    packed = pack_generation(generation)
    assert unpack_generation(packed) == generation
    assert packed.num_bytes == 3 * (4 + 4) + 2 * 8
    empty = Generation([], [], [], "abort")
    assert unpack_generation(pack_generation(empty)) == empty
