"""The router spreads siblings, keeps trajectories where they are, and goes on without replicas that die."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from rollcage.recorder import NullRecorder
from rollcage.trainer.clock import run_virtual
from rollcage.trainer.engines.base import EngineDied, EngineError, Weights
from rollcage.trainer.engines.scripted import Line, ScriptedEngine
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.types import Request, Sampling


class CountingRecorder(NullRecorder):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.gauges: list[tuple[str, str, float]] = []

    def counter(self, name: str, value: float = 1.0, **labels: str) -> None:
        self.counts[name] += int(value)

    def gauge(self, name: str, value: float, *, at_s: float | None = None, **labels: str) -> None:
        self.gauges.append((name, labels["engine"], value))


def request(id_: str, *, group: str = "", affinity: str = "") -> Request:
    return Request(id_, [1], Sampling(4), group=group, affinity=affinity)


class Fleet:
    """``num`` scripted replicas behind a router, and who served what."""

    def __init__(self, num: int, **fields: Any) -> None:
        self.served: dict[str, int] = {}
        self.engines = [self._engine(index, **fields) for index in range(num)]
        self.recorder = CountingRecorder()
        self.router = Router(self.engines, recorder=self.recorder)

    def _engine(self, index: int, **fields: Any) -> ScriptedEngine:
        def script(request: Request, version: int) -> Line:
            self.served[request.id] = index
            seconds = float(request.id.partition("@")[2] or 1)
            return Line([7, 8], first_token_s=seconds, error=EngineDied("cut") if "death" in request.id else None)

        return ScriptedEngine(script, **fields)

    def by_engine(self, *ids: str) -> Counter[int]:
        return Counter(self.served[id_] for id_ in ids)


def test_siblings_of_a_group_spread_even_over_unequal_load():
    async def main() -> None:
        fleet = Fleet(3)
        load = [asyncio.create_task(fleet.router.generate(request(f"load{i}@100", affinity="one"))) for i in range(9)]
        await asyncio.sleep(0)
        ids = [f"member{index}" for index in range(6)]
        await asyncio.gather(*(fleet.router.generate(request(id_, group="g", affinity=id_)) for id_ in ids))
        assert fleet.by_engine(*ids) == {0: 2, 1: 2, 2: 2}
        await asyncio.gather(*load)

    run_virtual(main)


def test_requests_without_a_group_go_to_the_least_loaded_replica():
    async def main() -> None:
        fleet = Fleet(2)
        calls = [asyncio.create_task(fleet.router.generate(request("first@100")))]
        for index in range(3):
            await asyncio.sleep(0)
            calls.append(asyncio.create_task(fleet.router.generate(request(f"short{index}@{index + 1}"))))
        await asyncio.sleep(0.5)
        assert [engine.num_live for engine in fleet.engines] == [2, 2]
        await asyncio.sleep(10)
        for index in range(2):
            await fleet.router.generate(request(f"later{index}"))
        assert fleet.by_engine("later0", "later1") == {1: 2}
        await asyncio.gather(*calls)

    run_virtual(main)


def test_later_turns_stay_with_the_replica_that_holds_the_prefix_until_it_dies():
    async def main() -> None:
        fleet = Fleet(3)
        await fleet.router.generate(request("other"))
        await asyncio.gather(
            *(fleet.router.generate(request(f"t{i}/0", group="g", affinity=f"t{i}")) for i in range(3))
        )
        for turn in range(1, 4):
            await asyncio.gather(*(fleet.router.generate(request(f"t{i}/{turn}", affinity=f"t{i}")) for i in range(3)))
        for i in range(3):
            assert len({fleet.served[f"t{i}/{turn}"] for turn in range(4)}) == 1
        home = fleet.served["t1/0"]
        fleet.engines[home].die()
        with pytest.raises(EngineDied):
            await fleet.router.generate(request("t1/4", affinity="t1"))
        await fleet.router.generate(request("t1/5", affinity="t1"))
        assert fleet.served["t1/5"] != home
        await fleet.router.generate(request("t1/6", affinity="t1"))
        assert fleet.served["t1/6"] == fleet.served["t1/5"]

    run_virtual(main)


def test_a_dead_replica_costs_its_requests_only_and_is_counted_once():
    async def main() -> None:
        fleet = Fleet(2)
        ids = ["death@5", "b@10", "c@10", "d@10"]
        results = await asyncio.gather(*(fleet.router.generate(request(id_)) for id_ in ids), return_exceptions=True)
        lost = [id_ for id_, result in zip(ids, results, strict=True) if isinstance(result, EngineDied)]
        assert sorted(lost) == ["c@10", "death@5"]  # the two of replica 0
        assert fleet.recorder.counts["engine_deaths"] == 1
        assert fleet.router.num_live_engines == 1
        await fleet.router.generate(request("e"))
        assert fleet.served["e"] == 1

    run_virtual(main)


def test_when_no_replica_is_left_every_call_says_so_at_once():
    async def main() -> None:
        fleet = Fleet(1)
        with pytest.raises(EngineDied, match="cut"):
            await fleet.router.generate(request("death"))
        for call in (
            fleet.router.generate(request("a")),
            fleet.router.publish({}, 1),
            fleet.router.pause(),
            fleet.router.resume(),
            fleet.router.start(),
        ):
            with pytest.raises(EngineDied, match="no engine replica is left"):
                await call
        await fleet.router.close()

    run_virtual(main)


def test_publish_reaches_all_replicas_at_once_and_the_version_is_the_oldest():
    async def main() -> float:
        fleet = Fleet(3, publish_s=2.0)
        publishing = asyncio.create_task(fleet.router.publish({}, 1))
        await asyncio.sleep(1)
        fleet.engines[0].policy_version = 1
        assert fleet.router.policy_version == 0
        await publishing
        assert fleet.router.policy_version == 1
        assert [engine.policy_version for engine in fleet.engines] == [1, 1, 1]
        return asyncio.get_running_loop().time()

    assert run_virtual(main) == 2


def test_publish_goes_on_without_a_replica_that_dies_in_it_but_not_without_one_that_refuses():
    class Refusing(ScriptedEngine):
        async def publish(self, weights: Weights, policy_version: int) -> None:
            raise EngineError("no such weight")

    async def main() -> None:
        fleet = Fleet(2, publish_s=2.0)
        publishing = asyncio.create_task(fleet.router.publish({}, 1))
        await asyncio.sleep(1)
        fleet.engines[0].die()
        await publishing
        assert (fleet.router.num_live_engines, fleet.router.policy_version) == (1, 1)
        router = Router([Refusing(lambda request, version: [1]), ScriptedEngine(lambda request, version: [1])])
        with pytest.raises(EngineError, match="no such weight"):
            await router.publish({}, 1)

    run_virtual(main)


def test_abort_pause_and_resume_reach_the_replicas():
    async def main() -> None:
        fleet = Fleet(2)
        calls = [asyncio.create_task(fleet.router.generate(request(f"r{i}@100"))) for i in range(2)]
        await asyncio.sleep(1)
        await fleet.router.abort("r1@100")
        await fleet.router.abort("unknown")
        assert (await calls[1]).finish_reason == "abort"
        assert not calls[0].done()
        await fleet.router.pause()
        await asyncio.sleep(1000)
        assert not calls[0].done()
        await fleet.router.resume()
        assert (await calls[0]).token_ids == [7, 8]

    run_virtual(main)


def test_close_ends_everything_and_counts_no_death():
    async def main() -> None:
        fleet = Fleet(2)
        calls = [asyncio.create_task(fleet.router.generate(request(f"r{i}@100"))) for i in range(4)]
        await asyncio.sleep(1)
        await fleet.router.publish({}, 5)
        await fleet.router.close()
        await fleet.router.close()
        assert all(isinstance(result, EngineDied) for result in await asyncio.gather(*calls, return_exceptions=True))
        assert fleet.recorder.counts["engine_deaths"] == 0
        assert fleet.router.policy_version == 5

    run_virtual(main)


def test_tokens_and_load_are_recorded():
    async def main() -> None:
        fleet = Fleet(2)
        for round_ in range(3):
            await asyncio.gather(*(fleet.router.generate(request(f"{round_}.{i}")) for i in range(4)))
        assert fleet.router.num_sampled_tokens == fleet.recorder.counts["sampled_tokens"] == 24
        assert fleet.recorder.counts["requests"] == 12
        assert {(name, engine) for name, engine, _ in fleet.recorder.gauges} == {
            ("engine_live_requests", "0"),
            ("engine_live_requests", "1"),
        }
        assert len(fleet.recorder.gauges) == 6  # twice a second at most, not once a request

    run_virtual(main)


def test_what_is_remembered_of_finished_trajectories_is_bounded(monkeypatch):
    monkeypatch.setattr("rollcage.trainer.rollout.router._REMEMBERED", 10)

    async def main() -> None:
        fleet = Fleet(2)
        for index in range(50):
            await fleet.router.generate(request(f"r{index}", group=f"g{index}", affinity=f"t{index}"))
        assert len(fleet.router._homes) == len(fleet.router._siblings) == 10

    run_virtual(main)
