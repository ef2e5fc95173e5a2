"""Replicas that have died begin anew, in virtual time: who serves, with which weights, and when it is given up."""

import asyncio
from collections import Counter

import pytest

from rollcage.recorder import NullRecorder
from rollcage.trainer.clock import run_virtual
from rollcage.trainer.engines.base import EngineDied, Weights
from rollcage.trainer.engines.simulated import SimulatedEngine, Speed
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.types import Request, Sampling


class MortalEngine(SimulatedEngine):
    """Takes ten seconds for a request, and ``start_s`` to begin anew, in which it fails ``num_faults`` times."""

    def __init__(self, start_s: float = 3.0, num_faults: int = 0) -> None:
        super().__init__(lambda request: 10, Speed(1.0))
        self.start_s, self.num_faults = start_s, num_faults

    async def restart(self) -> None:
        await asyncio.sleep(self.start_s)
        if self.num_faults > 0:
            self.num_faults -= 1
            raise EngineDied("not yet")
        self._died = None


class Events(NullRecorder):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def event(self, name: str, **fields: object) -> None:
        self.counts[name] += 1


def request(id_: str) -> Request:
    return Request(id_, [1], Sampling(100))


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_dead_replica_costs_what_it_had_and_serves_again_with_the_newest_weights():
    async def main() -> None:
        engines, events = [MortalEngine(), MortalEngine()], Events()
        router = Router(engines, recorder=events)
        await router.publish({}, 1)
        running = [asyncio.create_task(router.generate(request(str(index)))) for index in range(2)]
        await asyncio.sleep(1)
        engines[0].die()
        results = await asyncio.gather(*running, return_exceptions=True)
        assert isinstance(results[0], EngineDied)
        assert not isinstance(results[1], BaseException)
        assert router.num_live_engines == 2  # after a second's pause and three for its start
        assert [engine.policy_version for engine in engines] == [1, 1]
        await asyncio.gather(*(router.generate(request(f"later{index}")) for index in range(2)))
        assert events.counts == {"engine_died": 1, "engine_restarted": 1}
        await router.close()

    run_virtual(main)


def test_weights_that_came_meanwhile_reach_it_with_the_next_ones_and_it_serves_nothing_before():
    async def main() -> None:
        engines = [MortalEngine(), MortalEngine()]
        router = Router(engines)
        engines[0].die()
        with pytest.raises(EngineDied):
            await router.generate(request("victim"))
        await router.publish({}, 1)
        await asyncio.sleep(10)
        assert (router.num_live_engines, engines[0].policy_version) == (1, 0)
        await router.publish({}, 2)
        assert (router.num_live_engines, engines[0].policy_version) == (2, 2)
        await router.close()

    run_virtual(main)


def test_requests_and_publications_wait_for_the_only_replica():
    async def main() -> None:
        engine = MortalEngine()
        router = Router([engine])
        engine.die()
        with pytest.raises(EngineDied):
            await router.generate(request("victim"))
        start_s = now()
        publish = asyncio.create_task(router.publish({}, 1))
        await router.generate(request("patient"))
        assert now() - start_s == pytest.approx(1 + 3 + 10)
        await publish
        assert engine.policy_version == 1
        await router.close()

    run_virtual(main)


def test_weights_that_kill_the_only_replica_are_published_again():
    class Fragile(MortalEngine):
        num_deaths = 1

        async def publish(self, weights: Weights, policy_version: int) -> None:
            if self.num_deaths:
                self.num_deaths -= 1
                self.die()
            await super().publish(weights, policy_version)

    async def main() -> None:
        engine = Fragile()
        router = Router([engine])
        await router.publish({}, 1)
        assert (engine.policy_version, router.policy_version) == (1, 1)
        await router.close()

    run_virtual(main)


@pytest.mark.parametrize("num_faults", [2, 3])
def test_the_pauses_grow_and_after_the_last_attempt_it_is_given_up(num_faults: int):
    async def main() -> None:
        engine, events = MortalEngine(start_s=0, num_faults=num_faults), Events()
        router = Router([engine], recorder=events, max_restarts=3)
        engine.die()
        with pytest.raises(EngineDied):
            await router.generate(request("victim"))
        if num_faults == 2:
            await router.generate(request("patient"))
            assert now() == pytest.approx(1 + 2 + 4 + 10)
        else:
            with pytest.raises(EngineDied, match="no engine replica is left"):
                await router.generate(request("patient"))
            assert events.counts["engine_lost"] == 1
        await router.close()

    run_virtual(main)


def test_a_replica_that_comes_back_in_a_pause_pauses_too():
    async def main() -> None:
        engines = [MortalEngine(), MortalEngine()]
        router = Router(engines)
        engines[0].die()
        with pytest.raises(EngineDied):
            await router.generate(request("victim"))
        await router.pause()
        await asyncio.sleep(10)
        requests = [asyncio.create_task(router.generate(request(str(index)))) for index in range(2)]
        await asyncio.sleep(100)
        assert not any(task.done() for task in requests)
        await router.resume()
        await asyncio.gather(*requests)
        await router.close()

    run_virtual(main)
