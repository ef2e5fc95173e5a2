"""Deaths for memory: a daemon tells the end of the process and its reason in either order, and not at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollcage.sandbox import RestartPolicy, SandboxSpec, SandboxUnavailable, StartFailed, State
from rollcage.sandbox.drivers.fake import Behaviour, FakeDriver


async def kill_for_memory(host: FakeDriver, order: str, late_s: float) -> None:
    """End the only container as the kernel does; ``order``: what is told first, "oom" or "die"."""
    (name,) = host.live()
    inside = host.containers[name]
    if order == "oom":
        host._tell(name, "oom")
        await asyncio.sleep(late_s)
        inside.oom_killed = True
        host.die(name, 137)
        inside.oom_killed = True
    else:
        host.die(name, 137)
        await asyncio.sleep(late_s)
        inside.oom_killed = True
        host._tell(name, "oom")


@pytest.mark.parametrize("order", ["oom", "die"])
@pytest.mark.parametrize("late_s", [0.0, 0.1, 0.4, 2.0])
@pytest.mark.parametrize("restart", [RestartPolicy.FAIL, RestartPolicy.RESTART])
def test_a_death_for_memory_is_told_as_one_in_whatever_order_and_however_late_the_host_tells(
    world: Any, order: str, late_s: float, restart: RestartPolicy
) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec(restart=restart))
        await kill_for_memory(world.host, order, late_s)
        await asyncio.sleep(5.0)
        events = await sandbox.events()
        told = [event for event in events if event.kind == "oom" or event.data.get("oom_killed")]
        assert told, events
        info = await sandbox.info()
        if restart is RestartPolicy.FAIL:
            assert (info.state, info.exit_code, info.oom_killed) == (State.FAILED, 137, True)
            assert info.message.count("killed for memory") == 1
            with pytest.raises(SandboxUnavailable) as caught:
                await sandbox.exec("true")
            assert caught.value.oom_killed
        else:
            assert (info.state, info.oom_killed) == (State.READY, False), "the new life has not died"

    world.run(scenario)


def test_whoever_was_killed_otherwise_did_not_die_for_memory(world: Any) -> None:
    async def scenario(world: Any) -> None:
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec())
        await world.host.kill(world.host.live()[0])
        await asyncio.sleep(5.0)
        info = await sandbox.info()
        assert (info.state, info.exit_code, info.oom_killed) == (State.FAILED, 137, False)

    world.run(scenario)


def test_a_start_that_ended_for_memory_says_so_though_the_host_knows_it_late(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.host.behave = lambda container: Behaviour(ready_after_s=9.0)
        manager = await world.manager()
        creating = asyncio.create_task(manager.create(SandboxSpec(ready_command="ready")))
        await asyncio.sleep(1.0)
        await kill_for_memory(world.host, "die", 0.3)
        with pytest.raises(StartFailed, match="killed for memory"):
            await creating

    world.run(scenario)
