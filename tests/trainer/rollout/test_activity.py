"""Spans of engines and environments: every second of work is told, in few rows."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.trainer.scripted_run import CountingRecorder, ScriptedRun

from rollcage.recorder import NullRecorder
from rollcage.trainer.clock import run_virtual
from rollcage.trainer.rollout.activity import Activity
from rollcage.trainer.rollout.config import RolloutConfig


class Spans(NullRecorder):
    def __init__(self) -> None:
        self.told: list[tuple[float, float, float, int]] = []

    def span(self, track: str, name: str, start_s: float, end_s: float, **fields: Any) -> None:
        assert (track, name) == ("engine 0", "generate")
        self.told.append((round(start_s, 3), round(end_s, 3), round(fields["busy_s"], 3), fields["num"]))


def told(work: Callable[[Activity], Awaitable[None]]) -> list[tuple[float, float, float, int]]:
    """Return the spans (start, end, busy, number that ended) of work that begins at 0 s."""

    async def main() -> list[tuple[float, float, float, int]]:
        recorder = Spans()
        activity = Activity(recorder)
        await work(activity)
        activity.look(at_end=True)
        return recorder.told

    return run_virtual(main)


async def request(activity: Activity, begin_s: float, seconds: float) -> None:
    await asyncio.sleep(begin_s)
    with activity.during("engine 0", "generate"):
        await asyncio.sleep(seconds)


def test_requests_at_once_are_one_busy_time() -> None:
    async def work(activity: Activity) -> None:
        await asyncio.gather(request(activity, 0.0, 0.5), request(activity, 0.25, 0.5), request(activity, 0.875, 0.0))

    assert told(work) == [(0.0, 0.875, 0.75, 3)]


def test_a_thousand_requests_in_ten_seconds_are_ten_spans() -> None:
    async def work(activity: Activity) -> None:
        await asyncio.gather(*(request(activity, number / 100, 0.005) for number in range(1000)))

    spans = told(work)
    assert len(spans) <= 11
    assert sum(num for *_, num in spans) == 1000
    assert sum(busy for _, _, busy, _ in spans) == pytest.approx(5.0, abs=0.02)


def test_work_that_takes_long_shows_before_its_end_and_idle_time_does_not() -> None:
    async def work(activity: Activity) -> None:
        long = asyncio.create_task(request(activity, 0.0, 3.5))
        for _ in range(8):
            await asyncio.sleep(0.5)
            activity.look()
        await long
        await request(activity, 60.0, 0.25)

    spans = told(work)
    assert spans[0] == (0.0, 1.0, 1.0, 0)
    assert sum(busy for _, _, busy, _ in spans) == pytest.approx(3.75)
    assert [num for *_, num in spans].count(1) == 2
    assert spans[-1][:2] == (64.0, 64.25)


def test_what_fails_has_ended_too() -> None:
    async def work(activity: Activity) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await request(activity, 0.0, 9.0)

    assert told(work) == [(0.0, 0.5, 0.5, 1)]


class AllSpans(CountingRecorder):
    def __init__(self) -> None:
        super().__init__()
        self.spans: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)

    def span(self, track: str, name: str, start_s: float, end_s: float, **fields: Any) -> None:
        if "busy_s" in fields:
            assert 0 <= fields["busy_s"] <= end_s - start_s + 1e-6
            self.spans[track, name].append((end_s, fields["num"]))


def test_a_run_tells_when_its_engines_and_environments_work() -> None:
    config = RolloutConfig(num_groups=4, group_size=4, num_slots=16)
    run = ScriptedRun(config, num_engines=2)
    run.recorder = recorder = AllSpans()
    run(5)
    assert set(recorder.spans) == {
        *(("engine 0", "generate"), ("engine 1", "generate")),
        *(("environments", name) for name in ("acquire", "reset", "step")),
    }
    generated = sum(num for number in "01" for _, num in recorder.spans[f"engine {number}", "generate"])
    assert generated >= recorder.counts["requests"] > 5 * 16
    assert sum(num for _, num in recorder.spans["environments", "reset"]) >= 5 * 16
    for told in recorder.spans.values():
        assert len(told) <= told[-1][0] + 2, "one a second"
