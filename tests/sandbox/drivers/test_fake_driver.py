"""The fake driver: what its containers do, and how its faults strike."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rollcage.sandbox.drivers.base import LABEL_MANAGER, Container, HostEvent
from rollcage.sandbox.drivers.fake import Behaviour, FakeDriver, Fault
from rollcage.sandbox.errors import (
    DaemonUnreachable,
    DeadlineExceeded,
    GuestLost,
    HostUnavailable,
    ImageMissing,
    SandboxUnavailable,
)
from rollcage.sandbox.types import ExecRequest, SandboxSpec
from rollcage.trainer.clock import run_virtual

SPEC = SandboxSpec()
MINE = {LABEL_MANAGER: "me"}


def container(name: str, *, image: str = "") -> Container:
    return Container(name, SPEC, image, MINE)


def run(scenario: Callable[[FakeDriver], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(FakeDriver(clock=lambda: asyncio.get_running_loop().time()))

    run_virtual(main)


def test_creation_is_idempotent_by_name_and_needs_an_image() -> None:
    async def scenario(driver: FakeDriver) -> None:
        await driver.create(container("a"))
        await driver.create(container("a"))
        assert driver.created == ["a"]
        with pytest.raises(ImageMissing):
            await driver.create(container("b", image="nowhere"))
        (seen,) = await driver.list_containers("me")
        assert (seen.name, seen.status, seen.exit_code) == ("a", "running", None)
        assert await driver.list_containers("other") == []

    run(scenario)


def test_a_few_commands_are_understood_and_files_are_kept_in_images() -> None:
    async def scenario(driver: FakeDriver) -> None:
        await driver.create(container("a"))
        guest = await driver.connect("a", SPEC)
        assert (await guest.exec(ExecRequest("echo 1 > f; cat f"))).stdout == b"1"
        assert (await guest.exec(ExecRequest("false && echo no"))).exit_code == 1
        assert (await guest.exec(ExecRequest("frobnicate"))).exit_code == 127
        late = await guest.exec(ExecRequest("echo early; sleep 9", timeout_s=2.0))
        assert (late.timed_out, late.signal, late.stdout, late.duration_s) == (True, 9, b"early\n", 2.0)
        await driver.commit("a", "saved", MINE)
        await driver.create(container("b", image="saved"))
        assert (await (await driver.connect("b", SPEC)).exec(ExecRequest("cat f"))).stdout == b"1"
        await driver.remove_image("saved")
        assert await driver.list_images("me") == ["saved"], "b needs it"
        await driver.remove("b")
        await driver.remove_image("saved")
        assert await driver.list_images("me") == []

    run(scenario)


def test_calls_inside_end_with_their_container() -> None:
    async def scenario(driver: FakeDriver) -> None:
        driver.behave = lambda container: Behaviour(dies_after_s=3.0, exit_code=137, oom_killed=True)
        await driver.create(container("a"))
        guest = await driver.connect("a", SPEC)
        with pytest.raises(GuestLost):
            await guest.exec(ExecRequest("sleep 50"))
        assert asyncio.get_running_loop().time() == 3.0
        with pytest.raises(GuestLost):
            await guest.ping(timeout_s=1.0)
        with pytest.raises(SandboxUnavailable):
            await driver.connect("a", SPEC)
        seen = await driver.inspect("a")
        assert seen is not None
        assert (seen.status, seen.exit_code, seen.oom_killed) == ("exited", 137, True)

    run(scenario)


def test_a_frozen_or_hanging_inside_does_not_answer() -> None:
    async def scenario(driver: FakeDriver) -> None:
        await driver.create(container("a"))
        guest = await driver.connect("a", SPEC)
        await driver.pause("a")
        with pytest.raises(DeadlineExceeded):
            await guest.ping(timeout_s=5.0)
        await driver.unpause("a")
        await guest.ping(timeout_s=5.0)
        driver.containers["a"].behaviour = Behaviour(agent_hangs=True)
        with pytest.raises(DeadlineExceeded):
            await guest.ping(timeout_s=5.0)

    run(scenario)


def test_faults_strike_the_nth_calls_before_or_after_their_effect() -> None:
    async def scenario(driver: FakeDriver) -> None:
        driver.faults = [Fault("create", first=2, times=1, error=lambda: HostUnavailable("500"))]
        await driver.create(container("a"))
        with pytest.raises(HostUnavailable):
            await driver.create(container("b"))
        await driver.create(container("c"))
        assert driver.created == ["a", "c"]
        driver.faults = [Fault("create", error=lambda: HostUnavailable("too late"), lost_answer=True)]
        with pytest.raises(HostUnavailable):
            await driver.create(container("d"))
        assert driver.created == ["a", "c", "d"]
        driver.faults = [Fault("*", times=float("inf"), delay_s=2.5)]
        await driver.status()
        await driver.logs("a", num_lines=1)
        assert asyncio.get_running_loop().time() == 5.0
        driver.faults.clear()
        driver.down = True
        with pytest.raises(DaemonUnreachable):
            await driver.status()

    run(scenario)


def test_events_are_told_until_their_stream_breaks() -> None:
    async def scenario(driver: FakeDriver) -> None:
        told: list[HostEvent] = []

        async def listen() -> None:
            async for event in driver.events("me"):
                told.append(event)

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0)
        await driver.create(container("a"))
        driver.events_lost = True
        await driver.pause("a")
        driver.events_lost = False
        await driver.kill("a")
        await driver.remove("a")
        driver.break_events()
        with pytest.raises(HostUnavailable):
            await listening
        assert [(event.kind, event.exit_code) for event in told] == [("start", None), ("die", 137), ("destroy", None)]

    run(scenario)
