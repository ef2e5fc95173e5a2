"""What publishing does to messages that are being sampled, and what the step's deadline does to a batch."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.trainer.scripted_run import CountingRecorder, ScriptedRun, World

from rollcage.trainer.clock import run_virtual
from rollcage.trainer.engines.base import EngineDied
from rollcage.trainer.engines.scripted import Line, ScriptedEngine
from rollcage.trainer.rollout.config import RolloutConfig
from rollcage.trainer.rollout.router import Router
from rollcage.trainer.types import Generation, Request, Sampling

CONFIG = RolloutConfig(
    num_groups=4, group_size=4, num_slots=48, env_deadline_s=50, turn_deadline_s=300, episode_deadline_s=600
)


def fleet(interrupt: Any, num: int = 2, **fields: Any) -> tuple[Router, list[ScriptedEngine], CountingRecorder]:
    """Replicas that say the version they began with, five times, a second each."""
    recorder = CountingRecorder()
    engines = [ScriptedEngine(lambda request, version: Line([version] * 5, 1.0, 1.0), **fields) for _ in range(num)]
    return Router(engines, recorder=recorder, interrupt=interrupt), engines, recorder


async def publish_in_the_middle(interrupt: Any, **fields: Any) -> tuple[list[Generation], float, CountingRecorder]:
    """Publish 2.5 s after four requests, with a fifth that comes meanwhile; returns when publishing was over too."""
    router, _, recorder = fleet(interrupt, **fields)
    now = asyncio.get_running_loop().time

    async def generate(index: int) -> Generation:
        return await router.generate(Request(f"r{index}", [1], Sampling(10), affinity=f"t{index}"))

    calls = [asyncio.create_task(generate(index)) for index in range(4)]
    await asyncio.sleep(2.5)
    publishing = asyncio.create_task(router.publish({}, 1))
    await asyncio.sleep(0.01)
    calls.append(asyncio.create_task(generate(4)))
    await publishing
    published_s = now()
    return [await call for call in calls], published_s, recorder


def test_continue_goes_on_with_the_new_weights_and_each_token_carries_its_version() -> None:
    generations, published_s, recorder = run_virtual(lambda: publish_in_the_middle("continue", publish_s=0.1))
    assert published_s == pytest.approx(2.6)
    for generation in generations[:4]:
        assert generation.policy_versions == [0, 0, 1, 1, 1]
        assert generation.token_ids == [0] * 5  # it was not begun anew
    assert recorder.counts["discarded_tokens"] == 0


def test_abort_starts_the_message_again_from_its_prompt() -> None:
    generations, published_s, recorder = run_virtual(lambda: publish_in_the_middle("abort", publish_s=0.1))
    assert published_s == pytest.approx(2.6)
    for generation in generations:
        assert generation.policy_versions == [1] * 5
        assert generation.token_ids == [1] * 5
        assert generation.finish_reason == "stop"
    assert recorder.counts["restarted_requests"] == 4
    assert recorder.counts["discarded_tokens"] == 8
    assert recorder.counts["sampled_tokens"] == 25


def test_wait_lets_messages_come_to_their_end_and_new_ones_wait_for_the_weights() -> None:
    generations, published_s, recorder = run_virtual(lambda: publish_in_the_middle("wait", publish_s=0.1))
    assert published_s == pytest.approx(5.1)
    assert [generation.policy_versions for generation in generations] == [[0] * 5] * 4 + [[1] * 5]
    assert recorder.counts["discarded_tokens"] == 0


@pytest.mark.parametrize("interrupt", ["abort", "wait"])
def test_publishing_that_is_cancelled_opens_the_gate_again(interrupt: Any) -> None:
    async def main() -> None:
        router, engines, _ = fleet(interrupt, publish_s=50.0)
        call = asyncio.create_task(router.generate(Request("a", [1], Sampling(10))))
        await asyncio.sleep(1.5)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await router.publish({}, 1)
        assert (await call).token_ids == [0] * 5
        assert (await router.generate(Request("b", [1], Sampling(10)))).token_ids == [0] * 5
        assert [engine.num_live for engine in engines] == [0, 0]

    run_virtual(main)


@pytest.mark.parametrize("interrupt", ["abort", "wait"])
def test_a_replica_that_dies_while_requests_are_drained_costs_its_own_only(interrupt: Any) -> None:
    async def main() -> None:
        router, engines, recorder = fleet(interrupt, publish_s=1.0)
        calls = [asyncio.create_task(router.generate(Request(f"r{i}", [1], Sampling(10)))) for i in range(4)]
        await asyncio.sleep(1.5)
        publishing = asyncio.create_task(router.publish({}, 1))
        await asyncio.sleep(0.5)
        engines[0].die()
        await publishing
        results = await asyncio.gather(*calls, return_exceptions=True)
        if interrupt == "wait":
            assert [isinstance(result, EngineDied) for result in results] == [True, False, True, False]
        else:  # all were at the gate when it died
            assert all(isinstance(result, Generation) for result in results)
        assert recorder.counts["engine_deaths"] == 1
        assert router.policy_version == engines[1].policy_version == 1

    run_virtual(main)


def test_a_request_that_waits_at_the_gate_can_be_aborted() -> None:
    async def main() -> None:
        router, _, _ = fleet("abort", publish_s=10.0)
        call = asyncio.create_task(router.generate(Request("a", [1], Sampling(10))))
        await asyncio.sleep(1.5)
        publishing = asyncio.create_task(router.publish({}, 1))
        await asyncio.sleep(1)
        await router.abort("a")
        await publishing
        assert await call == Generation([], [], [], "abort")

    run_virtual(main)


@pytest.mark.parametrize("interrupt", ["continue", "abort", "wait"])
def test_in_training_turns_are_of_one_version_unless_they_may_continue(interrupt: Any) -> None:
    config = replace(CONFIG, async_ratio=1.5, interrupt=interrupt)
    world = World(turns=lambda task: 3)
    script = lambda request, version: Line([2] * (1 + request.seed % 9), 0.3, 0.3)  # noqa: E731
    run = ScriptedRun(config, world, script=script, num_engines=2)(8)
    mixed = total = 0
    for trajectory in run.episodes:
        for turn in trajectory.turns:
            versions = trajectory.segments[turn.segment].policy_versions[turn.start : turn.end]
            total += 1
            mixed += len(set(versions)) > 1
            assert versions == sorted(versions)
    assert total > 300
    assert (mixed > 0) == (interrupt == "continue")
    assert (run.recorder.counts["restarted_requests"] > 0) == (interrupt == "abort")
    assert any(trajectory.end_version > trajectory.start_version for trajectory in run.episodes)  # between turns


def hanging(*slow: int, member: int | None = None) -> Any:
    """A script in which the members of some groups take 250 s, or only one of each group does."""

    def script(request: Request, version: int) -> Line:
        group, index = map(int, request.id.split("/")[0].split("."))
        return Line([2], 250.0 + group if group in slow or index == member else 1.0)

    return script


def test_the_step_s_deadline_closes_a_batch_with_the_groups_that_are_complete() -> None:
    config = replace(CONFIG, async_ratio=0.0, step_deadline_s=30)
    run = ScriptedRun(config, script=hanging(1, 2))(2)
    assert run.groups == [[0, 3], [4, 5, 6, 7]]
    assert run.metrics[0]["time/wait_s"] == 30
    assert run.account.cancelled == 8
    assert run.recorder.counts["samples_by_duration_s"] == run.account.started


def test_the_step_s_deadline_closes_groups_that_have_enough_scored_members() -> None:
    config = replace(CONFIG, async_ratio=0.0, step_deadline_s=30)
    run = ScriptedRun(config, script=hanging(member=2))(2)
    assert run.groups == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert all(len(batch.returns) == 12 for batch in run.batches)
    assert run.account.cancelled == 8


def test_the_step_s_deadline_never_trains_on_nothing() -> None:
    config = replace(CONFIG, async_ratio=0.0, step_deadline_s=30)
    run = ScriptedRun(config, script=hanging(0, 1, 2, 3))(1)
    assert run.groups == [[0]]  # the first that ended
    assert run.metrics[0]["time/wait_s"] > 250


@pytest.mark.parametrize("async_ratio", [0.0, 0.5, 1.0, 1.75])
def test_after_short_batches_the_freshness_still_holds_and_training_goes_on(async_ratio: float) -> None:
    config = replace(CONFIG, async_ratio=async_ratio, step_deadline_s=5, num_slots=64)
    script = lambda request, version: Line([2], 30.0 if int(request.group) % 3 else 1.0)  # noqa: E731
    run = ScriptedRun(config, script=script)(15)
    bound = int(-(-async_ratio // 1))
    for staleness in run.staleness():
        assert max(staleness) <= bound
        if async_ratio % 1:
            assert staleness.count(bound) <= async_ratio % 1 * 4
    assert any(len(groups) < 4 for groups in run.groups)
