"""The circuit breaker: when it opens, how it tries again, and that a guarded driver is the driver still."""

import asyncio
import inspect
import random
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

from rollcage.sandbox.drivers.base import Container, Driver, HostEvent
from rollcage.sandbox.drivers.fake import FakeDriver, Fault
from rollcage.sandbox.errors import DaemonUnreachable, HostUnavailable, ImageMissing, SandboxError, StartFailed
from rollcage.sandbox.manager.breaker import Breaker, Circuit
from rollcage.sandbox.manager.guarded import HEAVY, guarded
from rollcage.sandbox.types import SandboxSpec
from rollcage.trainer.clock import run_virtual


class Middle(random.Random):
    """No jitter."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


class Daemon:
    """One call that does what it is told."""

    def __init__(self, breaker: Breaker) -> None:
        self.breaker = breaker
        self.takes_s, self.error = 0.0, None
        self.num_calls = self.num_running = self.max_running = 0

    takes_s: float
    error: BaseException | None

    async def answer(self) -> str:
        self.num_calls += 1
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        try:
            await asyncio.sleep(self.takes_s)
            if self.error is not None:
                raise self.error
            return "answer"
        finally:
            self.num_running -= 1

    async def call(self, *, timeout_s: float = 30.0, slow_s: float = 5.0) -> str:
        return await self.breaker.call(self.answer, timeout_s=timeout_s, slow_s=slow_s)

    async def calls(self, num: int, **deadlines: float) -> None:
        for _ in range(num):
            try:
                await self.call(**deadlines)
            except SandboxError:
                pass


def made(**options: Any) -> Daemon:
    return Daemon(Breaker("h", **{"num_recent": 10, "num_bad": 3, "open_s": 2.0, "rng": Middle(), **options}))


async def opened(**options: Any) -> Daemon:
    daemon = made(**options)
    daemon.error = DaemonUnreachable("down")
    await daemon.calls(3)
    assert daemon.breaker.state is Circuit.OPEN
    daemon.num_calls = 0
    return daemon


def test_it_opens_at_so_many_failures_and_then_refuses_without_calling():
    async def main() -> None:
        daemon = made()
        daemon.error = DaemonUnreachable("no route")
        for _ in range(3):
            assert daemon.breaker.state is Circuit.CLOSED
            with pytest.raises(DaemonUnreachable):
                await daemon.call()
        assert daemon.breaker.state is Circuit.OPEN
        with pytest.raises(HostUnavailable, match=r"'h' is quarantined, tried again in 2.0 s. Last failure: no route"):
            await daemon.call()
        assert daemon.num_calls == 3

    run_virtual(main)


def test_failures_need_not_be_in_a_row_but_must_be_recent():
    async def main() -> None:
        daemon = made()
        for bad in (1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0):  # never three among ten
            daemon.error = HostUnavailable("500") if bad else None
            await daemon.calls(1)
        assert daemon.breaker.state is Circuit.CLOSED
        daemon.error = HostUnavailable("500")
        await daemon.calls(1)
        assert daemon.breaker.state is Circuit.CLOSED
        await daemon.calls(1)
        assert daemon.breaker.state is Circuit.OPEN

    run_virtual(main)


@pytest.mark.parametrize("answer", [ImageMissing("no image"), StartFailed("/nope")])
def test_what_the_daemon_says_is_an_answer_even_if_it_is_no(answer: SandboxError):
    async def main() -> None:
        daemon = made()
        daemon.error = answer
        for _ in range(20):
            with pytest.raises(type(answer)):
                await daemon.call()
        assert daemon.breaker.state is Circuit.CLOSED

    run_virtual(main)


def test_slow_answers_open_it_though_they_come():
    async def main() -> None:
        daemon = made()
        daemon.takes_s = 6.0
        assert [await daemon.call() for _ in range(3)] == ["answer"] * 3
        assert daemon.breaker.state is Circuit.OPEN

    run_virtual(main)


def test_calls_that_hang_speak_against_the_host_as_soon_as_they_are_slow_and_end_by_their_deadline():
    async def main() -> None:
        daemon = made()
        daemon.takes_s = 1e9
        hanging = [asyncio.create_task(daemon.call()) for _ in range(3)]
        await asyncio.sleep(4.9)
        assert daemon.breaker.state is Circuit.CLOSED
        await asyncio.sleep(0.2)
        assert daemon.breaker.state is Circuit.OPEN
        for call in hanging:
            with pytest.raises(HostUnavailable, match="no answer within 30 s"):
                await call
        assert asyncio.get_running_loop().time() == 30.0
        assert daemon.num_running == 0

    run_virtual(main)


def test_one_call_counts_once_though_it_is_slow_and_fails_too():
    async def main() -> None:
        daemon = made(num_bad=2)
        daemon.takes_s, daemon.error = 6.0, HostUnavailable("late")
        await daemon.calls(1)
        assert daemon.breaker.state is Circuit.CLOSED

    run_virtual(main)


def test_a_call_that_is_cancelled_says_nothing_and_is_cancelled_inside():
    async def main() -> None:
        daemon = made(num_bad=1)
        daemon.takes_s = 1e9
        for _ in range(5):
            call = asyncio.create_task(daemon.call())
            await asyncio.sleep(1)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        assert daemon.num_running == 0
        assert daemon.breaker.state is Circuit.CLOSED

    run_virtual(main)


def test_after_the_pause_one_good_trial_closes_it_and_the_past_is_forgotten():
    async def main() -> None:
        daemon = await opened()
        daemon.error = None
        await asyncio.sleep(1.9)
        await daemon.calls(1)
        assert daemon.num_calls == 0
        await asyncio.sleep(0.2)
        assert daemon.breaker.state is Circuit.HALF_OPEN
        assert await daemon.call() == "answer"
        assert daemon.breaker.state is Circuit.CLOSED
        assert daemon.breaker.retry_at == 0
        daemon.error = HostUnavailable("500")
        await daemon.calls(2)
        assert daemon.breaker.state is Circuit.CLOSED

    run_virtual(main)


def test_a_trial_that_is_answered_with_no_closes_it_too():
    async def main() -> None:
        daemon = await opened()
        daemon.error = ImageMissing("no image")
        await asyncio.sleep(3)
        await daemon.calls(1)
        assert daemon.breaker.state is Circuit.CLOSED

    run_virtual(main)


@pytest.mark.parametrize("fault", ["fails", "slow", "hangs"])
def test_a_bad_trial_opens_it_again_for_twice_as_long_up_to_a_limit_and_success_starts_over(fault: str):
    async def main() -> list[float]:
        daemon = await opened(max_open_s=30.0)
        if fault != "fails":
            daemon.error, daemon.takes_s = None, 6.0 if fault == "slow" else 1e9
        pauses = [daemon.breaker.retry_at]
        loop = asyncio.get_running_loop()
        for _ in range(6):
            await asyncio.sleep(daemon.breaker.retry_at - loop.time())
            begin = loop.time()
            trial = asyncio.create_task(daemon.call())
            await asyncio.sleep(5.0)
            await asyncio.sleep(0)
            pauses.append(daemon.breaker.retry_at - begin - (0 if fault == "fails" else 5.0))
            trial.cancel()
            await asyncio.gather(trial, return_exceptions=True)
        daemon.error, daemon.takes_s = None, 0.0
        await asyncio.sleep(100)
        await daemon.calls(1)
        daemon.error = HostUnavailable("again")
        await daemon.calls(3)
        pauses.append(daemon.breaker.retry_at - loop.time())
        return pauses

    assert run_virtual(main) == [2, 4, 8, 16, 30, 30, 30, 2]


def test_pauses_are_jittered_by_a_quarter_so_that_hosts_do_not_come_back_at_once():
    async def main() -> None:
        pauses = []
        for seed in range(200):
            breaker = (await opened(rng=random.Random(seed))).breaker
            pauses.append(breaker.retry_at - asyncio.get_running_loop().time())
        assert 1.5 <= min(pauses) < 1.6
        assert 2.4 < max(pauses) <= 2.5

    run_virtual(main)


def test_a_trial_that_is_cancelled_leaves_the_trial_to_the_next_call():
    async def main() -> None:
        daemon = await opened()
        daemon.error, daemon.takes_s = None, 1.0
        await asyncio.sleep(3)
        trial = asyncio.create_task(daemon.call())
        await asyncio.sleep(0.5)
        with pytest.raises(HostUnavailable):
            await daemon.call()
        trial.cancel()
        await asyncio.gather(trial, return_exceptions=True)
        assert daemon.breaker.state is Circuit.HALF_OPEN
        assert await daemon.call() == "answer"
        assert daemon.breaker.state is Circuit.CLOSED

    run_virtual(main)


@pytest.mark.parametrize("late_answer", [None, HostUnavailable("late")])
def test_a_call_from_before_it_opened_decides_nothing_when_it_ends(late_answer: SandboxError | None):
    async def main() -> None:
        daemon = made(num_bad=1)
        daemon.takes_s, daemon.error = 10.0, late_answer
        old = asyncio.create_task(daemon.call(slow_s=100))
        await asyncio.sleep(0)
        daemon.takes_s, daemon.error = 0.0, HostUnavailable("500")
        await daemon.calls(1)
        await asyncio.sleep(9.5)
        assert daemon.breaker.state is Circuit.HALF_OPEN
        daemon.error, daemon.takes_s = late_answer, 3.0
        trial = asyncio.create_task(daemon.call())
        await asyncio.gather(old, return_exceptions=True)
        assert daemon.breaker.state is Circuit.HALF_OPEN  # the trial alone decides, and it is still under way
        with pytest.raises(HostUnavailable):
            await daemon.call()
        await asyncio.gather(trial, return_exceptions=True)
        assert daemon.breaker.state is (Circuit.CLOSED if late_answer is None else Circuit.OPEN)

    run_virtual(main)


def test_a_call_from_before_it_opened_does_not_count_once_it_is_closed_again():
    async def main() -> None:
        daemon = made(num_bad=1)
        daemon.takes_s, daemon.error = 20.0, HostUnavailable("late")
        old = asyncio.create_task(daemon.call(slow_s=100))
        await asyncio.sleep(0)
        daemon.takes_s = 0.0
        await daemon.calls(1)
        daemon.error = None
        await asyncio.sleep(10)
        await daemon.calls(1)
        daemon.error = HostUnavailable("late")
        await asyncio.gather(old, return_exceptions=True)
        assert daemon.breaker.state is Circuit.CLOSED

    run_virtual(main)


@pytest.mark.parametrize("seed", range(10))
def test_under_random_calls_never_two_at_once_pass_while_it_is_half_open_and_every_change_is_told(seed: int):
    async def main() -> None:
        rng = random.Random(seed)
        told: list[Circuit] = []
        breaker = Breaker("h", num_recent=8, num_bad=3, open_s=1.0, max_open_s=4.0, on_change=told.append, rng=rng)
        num_trials = max_trials = num_refused = num_trials_in_all = 0

        async def operation() -> None:
            nonlocal num_trials, max_trials, num_trials_in_all
            state = breaker.state
            assert state is not Circuit.OPEN, "a call passed while it was open"
            is_trial = state is Circuit.HALF_OPEN
            num_trials += is_trial
            num_trials_in_all += is_trial
            max_trials = max(max_trials, num_trials)
            epoch, takes_s = len(told), rng.choice([0.0, 0.1, 0.4])
            try:
                await asyncio.sleep(takes_s)
                if rng.random() < 0.4:
                    raise HostUnavailable("500")
            finally:
                num_trials -= is_trial
            if is_trial and takes_s < 0.3:  # a slow one has been judged
                assert len(told) == epoch, "something else than the trial decided"

        async def user() -> None:
            nonlocal num_refused
            for _ in range(60):
                await asyncio.sleep(rng.uniform(0, 0.5))
                try:
                    async with asyncio.timeout(rng.choice([0.05, 10])):
                        await breaker.call(operation, timeout_s=5.0, slow_s=0.3)
                except HostUnavailable as error:
                    num_refused += "quarantined" in str(error)
                except TimeoutError:
                    pass

        async with asyncio.TaskGroup() as users:
            for _ in range(20):
                users.create_task(user())
        assert max_trials == 1
        assert num_trials_in_all > 5
        assert num_refused > 20
        assert Circuit.HALF_OPEN not in told
        assert not any(before is after is Circuit.CLOSED for before, after in pairwise(told))

    run_virtual(main)


CALLS: dict[str, tuple[Any, ...]] = {
    "create": (Container("box", SandboxSpec()),),
    "connect": ("box", SandboxSpec()),
    "inspect": ("box",),
    "list_containers": ("m",),
    "logs": ("box",),
    "kill": ("box",),
    "remove": ("box",),
    "pause": ("box",),
    "unpause": ("box",),
    "commit": ("box", "image:1", {"label": "1"}),
    "list_images": ("m",),
    "remove_image": ("image:1",),
    "written_bytes": ("m",),
    "status": (),
}
KEYWORDS: dict[str, dict[str, Any]] = {"logs": {"num_lines": 7}}
NOT_CALLS = {"endpoint", "events", "close"}


class Recording:
    """A driver that notes each call and returns it."""

    endpoint = "unix:///somewhere"

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.takes_s = 0.0

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **keywords: Any) -> Any:
            self.calls.append((name, arguments, keywords))
            await asyncio.sleep(self.takes_s)
            return self.calls[-1]

        return call


def test_every_call_of_a_driver_is_known_here():
    public = {name for name, _ in inspect.getmembers(Driver) if not name.startswith("_")} | {"endpoint"}
    assert public == set(CALLS) | NOT_CALLS


@pytest.mark.parametrize("name", CALLS)
def test_a_guarded_driver_passes_each_call_on_as_it_is_and_refuses_it_while_open(name: str):
    async def main() -> None:
        recording, breaker = Recording(), Breaker("h", num_bad=1)
        driver = guarded(recording, breaker)  # type: ignore[arg-type]
        assert driver.endpoint == recording.endpoint
        expected = (name, CALLS[name], KEYWORDS.get(name, {}))
        answer = await getattr(driver, name)(*CALLS[name], **KEYWORDS.get(name, {}))
        assert recording.calls == [expected]
        if inspect.signature(getattr(Driver, name)).return_annotation != "None":
            assert answer == expected

        async def fails() -> None:
            raise HostUnavailable("500")

        with pytest.raises(HostUnavailable):
            await breaker.call(fails, timeout_s=1, slow_s=1)
        with pytest.raises(HostUnavailable, match="quarantined"):
            await getattr(driver, name)(*CALLS[name], **KEYWORDS.get(name, {}))
        assert recording.calls == [expected]
        await driver.close()
        assert recording.calls[-1] == ("close", (), {})

    run_virtual(main)


@pytest.mark.parametrize("name", CALLS)
def test_each_call_has_a_deadline_and_heavy_ones_a_longer_one(name: str):
    async def main() -> float:
        recording = Recording()
        recording.takes_s = 1e9
        driver = guarded(recording, Breaker("h"), call_timeout_s=10.0)  # type: ignore[arg-type]
        with pytest.raises(HostUnavailable, match="no answer"):
            await getattr(driver, name)(*CALLS[name], **KEYWORDS.get(name, {}))
        return asyncio.get_running_loop().time()

    is_heavy = name in ("create", "connect", "kill", "remove", "commit", "remove_image", "written_bytes")
    assert run_virtual(main) == (10.0 * HEAVY if is_heavy else 10.0)


def test_the_event_stream_passes_while_closed_its_failure_counts_and_it_is_no_trial():
    class Streams(FakeDriver):
        is_closed = False

        async def events(self, manager: str) -> AsyncIterator[HostEvent]:
            try:
                yield HostEvent("box", "start")
                await asyncio.sleep(100)
                raise HostUnavailable("the stream ended")
            finally:
                self.is_closed = True

    async def main() -> None:
        streams, breaker = Streams(), Breaker("h", num_bad=1, open_s=2.0)
        driver = guarded(streams, breaker)
        stream = driver.events("m")
        assert await anext(stream) == HostEvent("box", "start")
        with pytest.raises(HostUnavailable, match="the stream ended"):
            await anext(stream)
        assert asyncio.get_running_loop().time() == 100  # no deadline
        for wait_s in (0, 5):  # open, then half-open
            await asyncio.sleep(wait_s)
            with pytest.raises(HostUnavailable, match="quarantined"):
                await anext(driver.events("m"))
        await driver.status()
        assert breaker.state is Circuit.CLOSED
        streams.is_closed = False
        stream = driver.events("m")
        assert await anext(stream) == HostEvent("box", "start")
        await stream.aclose()  # type: ignore[attr-defined]
        assert streams.is_closed

    run_virtual(main)


def test_our_own_burst_of_starts_does_not_quarantine_the_host_that_it_slows_down_and_a_sick_daemon_does_get_there():
    """Two cores, eight starts of 1.5 s of work each at once: other calls wait for up to 6 s meanwhile."""

    async def main(is_sick: bool) -> float:
        driver = FakeDriver(create_s=1e9 if is_sick else 6.0)
        breaker = Breaker("h", rng=Middle())
        host = guarded(driver, breaker, call_timeout_s=40.0, slow_s=5.0)
        starts = [asyncio.create_task(host.create(Container(f"c{n}", SandboxSpec()))) for n in range(8)]
        await asyncio.sleep(0)
        driver.faults.append(Fault("inspect", times=float("inf"), delay_s=1e9 if is_sick else 6.0))
        looks = [asyncio.create_task(host.inspect(f"c{n}")) for n in range(8)]
        while breaker.state is Circuit.CLOSED and not all(task.done() for task in starts + looks):
            await asyncio.sleep(0.1)
        found_s = asyncio.get_running_loop().time()
        for task in starts + looks:
            task.cancel()
        await asyncio.gather(*starts, *looks, return_exceptions=True)
        assert (breaker.state is not Circuit.CLOSED) == is_sick
        return found_s

    run_virtual(lambda: main(False))
    assert run_virtual(lambda: main(True)) < 16.0


def test_silence_is_measured_from_the_first_call_that_failed_to_the_last_and_any_answer_ends_it():
    async def main() -> None:
        daemon = await opened(num_bad=3)
        assert daemon.breaker.silent_s == 0.0, "all three failed at the same moment"
        for _ in range(3):
            await asyncio.sleep(20.0)
            before = daemon.num_calls
            await daemon.calls(2)
            assert daemon.num_calls == before + 1, "one trial, and one that is refused"
        assert daemon.breaker.silent_s == 60.0
        await asyncio.sleep(5.0)
        assert daemon.breaker.silent_s == 60.0, "nobody has asked since"
        daemon.error, daemon.takes_s = ImageMissing("no image"), 6.0
        await asyncio.sleep(20.0)
        trial = asyncio.create_task(daemon.calls(1))
        await asyncio.sleep(5.5)
        assert daemon.breaker.silent_s == 90.0
        await trial
        assert daemon.breaker.silent_s == 0.0, "a slow answer is an answer"

    run_virtual(main)
