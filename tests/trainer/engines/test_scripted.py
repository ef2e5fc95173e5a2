"""The scripted engine keeps every promise of the seam, in virtual time."""

import asyncio

import pytest

from rollcage.trainer.clock import DeadlockError, run_virtual
from rollcage.trainer.engines.base import ContextFull, EngineDied, EngineError
from rollcage.trainer.engines.scripted import Line, ScriptedEngine
from rollcage.trainer.types import Generation, Request, Sampling


def request(id_: str = "a", *, prompt: int = 3, max_new_tokens: int = 10, stop: int | None = None) -> Request:
    stop_ids = frozenset() if stop is None else frozenset({stop})
    return Request(id_, [1] * prompt, Sampling(max_new_tokens), stop_ids=stop_ids)


def test_plain_ids_come_at_once_and_end_at_stop_ids_and_limits():
    async def main() -> None:
        engine = ScriptedEngine(lambda request, version: [5, 6, 7, 8], max_context_tokens=6)
        assert (await engine.generate(request())).token_ids == [5, 6, 7]  # the context has room for three
        assert (await engine.generate(request())).finish_reason == "length"
        stopped = await engine.generate(request(prompt=1, stop=6))
        assert (stopped.token_ids, stopped.finish_reason) == ([5, 6], "stop")
        short = await engine.generate(request(prompt=1, max_new_tokens=2))
        assert (short.token_ids, short.finish_reason) == ([5, 6], "length")
        whole = await engine.generate(request(prompt=1))
        assert (whole.token_ids, whole.finish_reason) == ([5, 6, 7, 8], "stop")
        with pytest.raises(ContextFull):
            await engine.generate(request(prompt=6))

    run_virtual(main)


def test_two_runs_are_equal_and_every_logprob_is_negative():
    def run() -> list[Generation]:
        async def main() -> list[Generation]:
            engine = ScriptedEngine(lambda request, version: Line([version, 4, 4], token_s=0.5), max_batch_size=2)
            calls = [asyncio.create_task(engine.generate(request(f"r{index}"))) for index in range(6)]
            await asyncio.sleep(1.2)
            await engine.publish({}, 1)
            return [await call for call in calls]

        return run_virtual(main)

    generations = run()
    assert generations == run()
    assert all(logprob < 0 for generation in generations for logprob in generation.logprobs)
    assert generations[-1].token_ids[0] == 1  # the script saw the new version
    assert generations[2].policy_versions == [0, 1, 1]  # started before, ended after


def test_more_than_max_batch_size_wait_first_come_first_served():
    async def main() -> list[float]:
        engine = ScriptedEngine(lambda request, version: Line([1], first_token_s=10), max_batch_size=2)
        ends: list[float] = []

        async def call(index: int) -> None:
            await engine.generate(request(f"r{index}"))
            ends.append(asyncio.get_running_loop().time() + index / 100)

        calls = [asyncio.create_task(call(index)) for index in range(5)]
        await asyncio.sleep(1)
        assert engine.num_live == 5
        await asyncio.gather(*calls)
        assert engine.num_live == 0
        return ends

    assert run_virtual(main) == pytest.approx([10.00, 10.01, 20.02, 20.03, 30.04])


def test_delays_are_of_the_clock():
    async def main() -> float:
        engine = ScriptedEngine(lambda request, version: Line([1, 2, 3], first_token_s=1.0, token_s=0.25))
        await engine.generate(request())
        return asyncio.get_running_loop().time()

    assert run_virtual(main) == 1.5


def test_a_scripted_error_costs_its_own_request_and_a_scripted_death_all_of_them():
    def script(request: Request, version: int) -> Line:
        if request.id == "error":
            return Line(error=EngineError("bad luck"))
        if request.id == "death":
            return Line(first_token_s=2, error=EngineDied("power cut"))
        return Line([1], first_token_s=5 if request.id == "slow" else 1)

    async def main() -> None:
        engine = ScriptedEngine(script)
        slow = asyncio.create_task(engine.generate(request("slow")))
        with pytest.raises(EngineError, match="bad luck"):
            await engine.generate(request("error"))
        assert (await engine.generate(request("fine"))).token_ids == [1]
        with pytest.raises(EngineDied, match="power cut"):
            await engine.generate(request("death"))
        with pytest.raises(EngineDied, match="power cut"):
            await slow
        for call in (engine.generate(request("late")), engine.publish({}, 1), engine.pause(), engine.start()):
            with pytest.raises(EngineDied, match="power cut"):
                await call

    run_virtual(main)


def test_a_hanging_request_can_be_cancelled_aborted_and_closed_and_frees_its_slot():
    async def main() -> None:
        engine = ScriptedEngine(
            lambda request, version: Line([1, 2], hang=request.id.startswith("hang")), max_batch_size=1
        )
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await engine.generate(request("hang1"))
        aborted = asyncio.create_task(engine.generate(request("hang2")))
        waiting = asyncio.create_task(engine.generate(request("hang3")))
        await asyncio.sleep(1)
        await engine.abort("hang3")
        assert await waiting == Generation([], [], [], "abort")
        await engine.abort("hang2")
        assert (await aborted).token_ids == [1, 2]
        assert (await aborted).finish_reason == "abort"
        assert (await engine.generate(request("fine"))).token_ids == [1, 2]
        closed = asyncio.create_task(engine.generate(request("hang4")))
        await asyncio.sleep(1)
        await engine.close()
        await engine.close()
        with pytest.raises(EngineDied, match="closed"):
            await closed
        assert engine.num_live == 0

    run_virtual(main)


def test_a_hang_that_nobody_bounds_is_a_visible_deadlock():
    async def main() -> None:
        await ScriptedEngine(lambda request, version: Line(hang=True)).generate(request())

    with pytest.raises(DeadlockError):
        run_virtual(main)


def test_pause_holds_every_token_until_resume():
    async def main() -> None:
        engine = ScriptedEngine(lambda request, version: Line([1, 2, 3], token_s=1))
        running = asyncio.create_task(engine.generate(request("running")))
        await asyncio.sleep(1.5)
        await engine.pause()
        fresh = asyncio.create_task(engine.generate(request("fresh")))
        await asyncio.sleep(100)
        assert not running.done()
        assert not fresh.done()
        await engine.publish({}, 3)
        await engine.resume()
        assert (await running).policy_versions == [0, 0, 3]
        assert (await fresh).policy_versions == [3, 3, 3]

    run_virtual(main)
