"""A storm: calls, faults, deaths, kills of the manager and its successors, at random, in virtual time.

After each storm the hosts are healed, the dust settles, and every promise is checked.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

import pytest

from rollcage.errors import RollcageError
from rollcage.sandbox import Probe, RestartPolicy, SandboxError, SandboxSpec, Settings, State
from rollcage.sandbox.drivers.base import LABEL_SANDBOX
from rollcage.sandbox.drivers.fake import Behaviour, FakeDriver, Fault
from rollcage.sandbox.errors import DaemonUnreachable, HostUnavailable
from rollcage.sandbox.manager.box import LIVE
from rollcage.sandbox.manager.placement import HostLimits

NUM_STORMS, STORM_S, SETTLE_S = 3, 60.0, 200.0
CALLS = ("create", "connect", "inspect", "list_containers", "remove", "logs", "commit", "pause", "exec", "ping", "*")
SETTINGS = Settings(limits=HostLimits(max_sandboxes=8))


def seconds() -> float:
    return asyncio.get_running_loop().time()


class Storm:
    """What is done to a world."""

    def __init__(self, world: Any, seed: int) -> None:
        self.world, self.rng = world, random.Random(seed)
        self.settings = replace(SETTINGS, move_after_s=3.0) if seed % 2 else SETTINGS
        self.manager: Any = None
        self.handles: list[Any] = []
        self.calls: set[asyncio.Task[None]] = set()
        self.num_calls = self.num_errors = self.num_kills = 0

    def call(self, work: Awaitable[Any], limit_s: float) -> None:
        """Make a call that must end by ``limit_s``, with a result or one of our errors."""

        async def timed() -> None:
            begin_s = seconds()
            try:
                result = await work
                if hasattr(result, "exec"):
                    self.handles.append(result)
            except RollcageError:
                self.num_errors += 1
            assert seconds() - begin_s <= limit_s, f"{work} took {seconds() - begin_s} s"

        self.num_calls += 1
        task = asyncio.create_task(timed())
        self.calls.add(task)

    def act(self) -> None:
        """Do one thing at random."""
        rng, handle = self.rng, self.rng.choice(self.handles) if self.handles else None
        kind = rng.random()
        if handle is None or kind < 0.2:
            spec = SandboxSpec(
                restart=rng.choice(list(RestartPolicy)),
                ttl_s=rng.choice([5.0, 60.0, 0.0]),
                start_timeout_s=rng.choice([2.0, 20.0]),
                ready_command=rng.choice(["", "ready"]),
                probe=Probe(interval_s=rng.choice([1.0, 5.0])),
            )
            key = rng.choice(["", f"key {rng.randrange(100)}"])
            create = self.manager.create(spec, key=key, owner=rng.choice("abc"), deadline_s=20.0)
            self.call(create, 20.0 + SETTINGS.grace_s + 1)
        elif kind < 0.5:
            command = rng.choice(["echo hi", "sleep 1", "sleep 9", "echo x > f", "cat f"])
            self.call(handle.exec(command, timeout_s=5.0), 5.0 + SETTINGS.grace_s + 31)
        elif kind < 0.6:
            self.call(handle.snapshot(), SETTINGS.operation_timeout_s + 1)
        elif kind < 0.75:
            name = rng.choice(["restore", "fork", "pause", "resume", "resume", "renew", "delete"])
            self.call(getattr(handle, name)(), 2 * SETTINGS.operation_timeout_s + 1)
        else:
            self.harm(rng.choice(list(self.world.hosts.values())))

    def harm(self, host: FakeDriver) -> None:
        """Do one kind of harm at random."""
        rng = self.rng
        kind, live = rng.random(), host.live()
        if kind < 0.3 and live:
            host.die(rng.choice(live), rng.choice([0, 1, 137]), oom_killed=rng.random() < 0.3)
        elif kind < 0.4 and live:
            inside = host.containers[rng.choice(live)]
            if rng.random() < 0.5:
                inside.sick = True
            else:
                inside.behaviour = Behaviour(agent_hangs=True)
        elif kind < 0.85:
            error = rng.choice([None, lambda: HostUnavailable("500"), lambda: DaemonUnreachable("gone")])
            delay_s = rng.choice([0.1, 3.0, 40.0, float("inf")] if error is None else [0.0, 1.0])
            host.faults.append(
                Fault(rng.choice(CALLS), rng.randrange(1, 4), rng.randrange(1, 4), delay_s, error, rng.random() < 0.5)
            )
        elif kind < 0.9:
            host.down = rng.random() < 0.5
        elif kind < 0.95:
            host.break_events()
        else:
            host.events_lost = not host.events_lost

    async def replace_manager(self) -> None:
        """Kill the manager, or close it, and open the next one."""
        begin_s = seconds()
        if self.rng.random() < 0.8:
            await self.world.kill(self.manager)
            self.num_kills += 1
        else:
            await self.manager.close()
            assert seconds() - begin_s <= 60.0
        for call in list(self.calls):
            call.cancel()
        await asyncio.gather(*self.calls, return_exceptions=True)
        self.calls.clear()
        await asyncio.sleep(self.rng.choice([0.0, 0.5, 30.0]))
        await self.open()

    async def open(self) -> None:
        """Open a manager, and hold its sandboxes."""
        self.manager = await self.world.manager(self.settings)
        self.handles = [await self.manager.attach(info.id) for info in await self.manager.list_sandboxes()]

    async def rage(self) -> None:
        """One storm."""
        for host in self.world.hosts.values():
            host.create_s = self.rng.choice([0.0, 0.3, 2.0])
            host.behave = lambda container: Behaviour(
                ready_after_s=self.rng.choice([0.0, 0.0, 0.5, float("inf")]),
                dies_after_s=self.rng.choice([float("inf"), float("inf"), 0.2, 20.0]),
                fails=self.rng.random() < 0.1,
            )
        end_s = seconds() + STORM_S
        while seconds() < end_s:
            await asyncio.sleep(self.rng.expovariate(6.0))
            if self.rng.random() < 0.015:
                await self.replace_manager()
            else:
                self.act()

    async def settle(self) -> None:
        """Heal the hosts, let every call end, and wait."""
        for host in self.world.hosts.values():
            host.down = host.events_lost = False
            host.faults.clear()
            host.behave = lambda container: Behaviour()
        await asyncio.sleep(SETTLE_S)
        results = await asyncio.gather(*self.calls)
        assert len(results) == len(self.calls)
        self.calls.clear()
        await asyncio.sleep(SETTLE_S)

    async def check(self) -> None:
        """Check every promise."""
        infos = {info.id: info for info in await self.manager.list_sandboxes()}
        boxes = self.manager._fleet.boxes
        for name, host in self.world.hosts.items():
            for container in host.containers.values():
                info = infos.get(container.container.labels[LABEL_SANDBOX])
                assert info is not None, "a container without a row"
                assert info.state in LIVE, (container, info)
                assert container.container.name == boxes[info.id].name
                assert info.host == name
            kept = {snapshot.image for snapshot in await self.manager.snapshots() if snapshot.host == name}
            in_use = {image for box in boxes.values() for image in (box.row.image, box.row.origin)}
            assert kept <= set(host.images) <= kept | in_use
        for info in infos.values():
            live = [name for host in self.world.hosts.values() for name in host.live(info.id)]
            assert len(live) == (info.state in LIVE), (info, live)
            assert info.state in (*LIVE, State.FAILED)
            if info.state is State.READY:
                handle = await self.manager.attach(info.id)
                assert (await handle.exec("echo hi")).generation == info.generation
        hosts = await self.manager.hosts()
        assert {host.condition for host in hosts} == {"open"}
        for host in hosts:
            mine = [info for info in infos.values() if info.host == host.name and info.state in LIVE]
            assert host.num_sandboxes == len(mine), (host, mine)


@pytest.mark.parametrize("seed", range(12))
def test_every_promise_holds_after_a_storm(world: Any, seed: int) -> None:
    async def scenario(world: Any) -> None:
        world.hosts["two"] = FakeDriver(endpoint="fake://two", clock=world.host._clock)
        storm = Storm(world, seed)
        await storm.open()
        for _ in range(NUM_STORMS):
            await storm.rage()
            await storm.settle()
            await storm.check()
        assert storm.num_calls > 100
        for info in await storm.manager.list_sandboxes():
            try:
                await (await storm.manager.attach(info.id)).delete()
            except SandboxError as error:
                raise AssertionError(info) from error
        await storm.manager.reap()
        await storm.manager.prune_images()
        for host in world.hosts.values():
            assert host.containers == {}
            assert host.images == {}
        assert [host.num_sandboxes for host in await storm.manager.hosts()] == [0, 0]

    world.run(scenario)
