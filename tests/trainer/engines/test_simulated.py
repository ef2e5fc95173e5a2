"""The simulated engine: slots, a speed that may depend on the load, versions, and every promise of the seam."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rollcage.trainer.clock import run_virtual
from rollcage.trainer.engines.base import EngineDied, EngineError
from rollcage.trainer.engines.simulated import SimulatedEngine, Speed
from rollcage.trainer.types import Generation, Request, Sampling

ONE = Speed(1.0)
LENGTHS = {"a": 10, "b": 20, "c": 5}


def request(id_: str, max_new_tokens: int = 1000) -> Request:
    return Request(id_, [1], Sampling(max_new_tokens), stop_ids=frozenset({0}))


def engine(speed: Speed = ONE, *, slots: int = 2, tokens_per_id: int = 1) -> SimulatedEngine:
    return SimulatedEngine(lambda r: LENGTHS[r.id], speed, max_batch_size=slots, tokens_per_id=tokens_per_id)


def play(
    simulated: SimulatedEngine, *events: tuple[float, Callable[[], Awaitable[None]]], ids: str = "abc"
) -> dict[str, tuple[float, Generation | EngineError]]:
    """Generate for all ``ids`` from 0 s on; returns when each ended, and what it got."""
    ends: dict[str, tuple[float, Generation | EngineError]] = {}

    async def one(id_: str) -> None:
        result: Generation | EngineError
        try:
            result = await simulated.generate(request(id_))
        except EngineError as error:
            result = error
        ends[id_] = asyncio.get_running_loop().time(), result

    async def later(at_s: float, action: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(at_s)
        await action()

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            for id_ in ids:
                tasks.create_task(one(id_))
            for event in events:
                tasks.create_task(later(*event))

    run_virtual(main)
    return ends


def times(ends: dict[str, tuple[float, Generation | EngineError]]) -> dict[str, float]:
    return {id_: round(at_s, 9) for id_, (at_s, _) in ends.items()}


def test_slots_fill_first_come_first_served_and_a_freed_slot_is_taken_at_once():
    simulated = engine()
    assert times(play(simulated)) == {"a": 10, "c": 15, "b": 20}
    assert simulated.busy_slot_s == 35
    assert simulated.num_tokens == 35


def test_all_requests_slow_down_while_more_of_them_run():
    # two run at 1.5 s a token until a's 10 tokens are through at 15 s; then c and b at the same speed until c ends at
    # 22.5 s; b, which has 15 tokens by then, makes its last 5 alone
    assert times(play(engine(Speed(1.0, load_token_s=0.5)))) == {"a": 15, "c": 22.5, "b": 27.5}


def test_the_first_token_takes_its_time_in_the_slot():
    assert times(play(engine(Speed(1.0, first_token_s=3.0), slots=1), ids="ac")) == {"a": 13, "c": 21}


def test_a_prompt_holds_up_all_that_run_while_it_is_read():
    # a's and b's prompts are read until 4 s; c's, which comes when a ends, from 14 to 16 s
    assert times(play(engine(Speed(1.0, prompt_token_s=2.0)))) == {"a": 14, "c": 21, "b": 26}


def test_all_wait_for_the_longest_context_which_grows():
    # a token takes 1 s + 0.1 s n c: 10 of a and b, c from 1 to 11; 5 of b and c, from 11 to 16; 5 of b alone, to 21
    ends = times(play(engine(Speed(1.0, context_token_s=0.1))))
    assert ends == pytest.approx({"a": 10 + 0.2 * 60, "c": 22 + 5 + 0.2 * 67.5, "b": 40.5 + 5 + 0.1 * 92.5})


def test_a_response_is_cut_at_max_new_tokens_and_ends_with_a_stop_id_otherwise():
    async def main() -> None:
        cut = await engine().generate(request("a", 4))
        assert (len(cut.token_ids), cut.finish_reason, 0 in cut.token_ids) == (4, "length", False)
        whole = await engine().generate(request("a"))
        assert (len(whole.token_ids), whole.finish_reason, whole.token_ids[-1]) == (10, "stop", 0)

    run_virtual(main)


@pytest.mark.parametrize(("tokens_per_id", "versions"), [(1, [0] * 4 + [7] * 6), (2, [0] * 2 + [7] * 3)])
def test_every_token_carries_the_version_that_sampled_it(tokens_per_id: int, versions: list[int]):
    simulated = engine(Speed(1.0, publish_s=2.0), tokens_per_id=tokens_per_id)
    ends = play(simulated, (4.0, lambda: simulated.publish({}, 7)), ids="ac")
    generation = ends["a"][1]
    assert isinstance(generation, Generation)
    assert generation.policy_versions == versions
    assert times(ends) == {"a": 12, "c": 7}  # the publication held both up


def test_a_pause_stops_the_clock_of_all_requests():
    simulated = engine()
    assert times(play(simulated, (3.0, simulated.pause), (8.0, simulated.resume))) == {"a": 15, "c": 20, "b": 25}


def test_an_abort_returns_what_is_there_and_frees_the_slot():
    simulated = engine()
    ends = play(simulated, (4.0, lambda: simulated.abort("b")), (4.0, lambda: simulated.abort("nobody")))
    aborted = ends["b"][1]
    assert isinstance(aborted, Generation)
    assert (len(aborted.token_ids), aborted.finish_reason) == (4, "abort")
    assert times(ends) == {"b": 4, "c": 9, "a": 10}


def test_an_abort_while_waiting_returns_nothing_and_later_ones_come_through():
    simulated = engine(slots=1)
    ends = play(simulated, (4.0, lambda: simulated.abort("b")))
    aborted = ends["b"][1]
    assert isinstance(aborted, Generation)
    assert aborted.token_ids == []
    assert times(ends) == {"b": 4, "a": 10, "c": 15}


def test_a_cancelled_call_frees_its_slot():
    simulated = engine(slots=1)

    async def main() -> float:
        first, second = (asyncio.create_task(simulated.generate(request(id_))) for id_ in "bc")
        await asyncio.sleep(3)
        first.cancel()
        await second
        assert simulated.num_live == 0
        return asyncio.get_running_loop().time()

    assert run_virtual(main) == 8


def test_death_fails_all_that_runs_waits_or_comes():
    simulated = engine()

    async def die() -> None:
        simulated.die("power is out")

    ends = play(simulated, (2.0, die))
    assert all(isinstance(result, EngineDied) for _, result in ends.values())
    with pytest.raises(EngineDied, match="power is out"):
        run_virtual(lambda: simulated.generate(request("a")))


def test_an_id_in_use_is_refused():
    simulated = engine()

    async def main() -> None:
        running = asyncio.create_task(simulated.generate(request("a")))
        await asyncio.sleep(1)
        with pytest.raises(EngineError, match="in use"):
            await simulated.generate(request("a"))
        await running

    run_virtual(main)
