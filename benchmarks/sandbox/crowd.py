"""Many sandboxes at once: probes on schedule, how soon a death is seen and mended, ports, and what it all costs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from rollcage.recorder import NullRecorder, Recorder
from rollcage.sandbox.base import Sandbox
from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.manager.fleet import Settings
from rollcage.sandbox.manager.manager import Manager
from rollcage.sandbox.manager.placement import HostLimits
from rollcage.sandbox.opening import default_endpoint
from rollcage.sandbox.types import MIB, RestartPolicy, SandboxSpec, State

NUM_SANDBOXES, NUM_DEATHS, NUM_PORTS = 100, 10, 50
WATCHED_S = 60.0
SEEN_S, RESTORED_S = 10.0, 5.0
"""Goals: so soon is a death seen, and so soon after that the sandbox is there again."""


class Probes(NullRecorder):
    """Counts probes.

    Attributes:
        durations_s: of all probes.
        num_failed: of these.
    """

    def __init__(self) -> None:
        self.durations_s: list[float] = []
        self.num_failed = 0

    def histogram(self, name: str, value: float, **labels: str) -> None:
        """See `rollcage.recorder.Recorder`."""
        if name == "sandbox_probe_seconds":
            self.durations_s.append(value)
            self.num_failed += labels["ok"] == "false"


async def crowd(image: str) -> dict[str, Any]:
    """100 sandboxes for a minute with the default probes; then ten are killed and the agents of ten hang."""
    probes = Probes()
    spec = SandboxSpec(image=image, memory_bytes=64 * MIB, cpus=0.2, restart=RestartPolicy.RESTORE)
    async with _manager(probes) as manager:
        begin_s = time.monotonic()
        boxes = await asyncio.gather(*(manager.create(spec) for _ in range(NUM_SANDBOXES)))
        created_s = time.monotonic() - begin_s
        await asyncio.sleep(spec.probe.interval_s)  # each has had its first
        probes.durations_s.clear()
        cpu_s, begin_s, commands_ms = _cpu_s(), time.monotonic(), []
        while time.monotonic() - begin_s < WATCHED_S:
            at_s = time.perf_counter()
            await random.choice(boxes).exec("true")
            commands_ms.append((time.perf_counter() - at_s) * 1e3)
            await asyncio.sleep(0.1)
        watched_s = time.monotonic() - begin_s
        share = (_cpu_s() - cpu_s) / watched_s
        expected = NUM_SANDBOXES * watched_s / spec.probe.interval_s
        on_schedule, num_failed = len(probes.durations_s) / expected, probes.num_failed
        p99_ms = statistics.quantiles(probes.durations_s, n=100)[-1] * 1e3
        chosen = random.sample(boxes, 2 * NUM_DEATHS)
        for box in chosen:
            await box.put(b"kept", "state")
            await box.snapshot()
        async with _driver() as driver:
            killed = await asyncio.gather(
                *(_mended(manager, box, lambda box: driver.kill(f"rollcage-{box.id}-1")) for box in chosen[:NUM_DEATHS])
            )
            hung = await asyncio.gather(*(_mended(manager, box, _hang) for box in chosen[NUM_DEATHS:]))
        resident_mib = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / MIB
        numbers = {
            "sandboxes": NUM_SANDBOXES,
            "created_in_s": round(created_s, 1),
            "probes_made_of_those_due": round(on_schedule, 3),
            "probes_failed": num_failed,
            "probe_p99_ms": round(p99_ms, 1),
            "exec_p50_ms": round(statistics.median(commands_ms), 1),
            "manager_cpu_share_of_a_core": round(share, 3),
            "manager_mib": round(resident_mib),
        }
        for how, found in (("killed", killed), ("hung", hung)):
            for at, what in enumerate(("seen", "restored")):
                numbers[f"{how}_{what}_after_s"] = round(max(times_s[at] for times_s in found), 2)
        ok = 0.95 < on_schedule < 1.05 and not num_failed
        ok = ok and all(seen_s <= SEEN_S and restored_s <= RESTORED_S for seen_s, restored_s in killed + hung)
        return {"ok": ok, **numbers}


async def _mended(manager: Manager, box: Sandbox, harm: Callable[[Sandbox], Awaitable[None]]) -> tuple[float, float]:
    """Harm a sandbox; return the seconds until the manager says so, and from there until its file is back."""
    begin_s = time.monotonic()
    harming = asyncio.ensure_future(harm(box))
    try:
        async with asyncio.timeout(60.0):
            while (info := await box.info()).state is State.READY and info.generation == 1:
                await asyncio.sleep(0.02)
            seen_s = time.monotonic()
            while (info := await box.info()).state is not State.READY or info.generation == 1:
                await asyncio.sleep(0.02)
            if await (await manager.attach(box.id)).read("state") != b"kept":
                raise RuntimeError(f"sandbox {box.id} came back without its file")
            return seen_s - begin_s, time.monotonic() - seen_s
    finally:
        harming.cancel()
        await asyncio.gather(harming, return_exceptions=True)


async def _hang(box: Sandbox) -> None:
    await box.exec("kill -STOP $PPID")  # its parent is the agent, which answers nobody from now on


async def ports(image: str) -> dict[str, Any]:
    """S16: 50 sandboxes with a published port, while this process binds ports at random."""
    taken: list[socket.socket] = []

    async def bind_at_random() -> None:
        while True:
            other = socket.socket()
            try:
                other.bind(("127.0.0.1", random.randrange(32768, 34000)))
                other.listen()
                taken.append(other)
            except OSError:
                other.close()
            await asyncio.sleep(0.02)

    spec = SandboxSpec(image=image, memory_bytes=64 * MIB, cpus=0.2, ports=(8000,))
    async with _manager(NullRecorder()) as manager:
        binding = asyncio.create_task(bind_at_random())
        try:
            begin_s = time.monotonic()
            outcomes = await asyncio.gather(*(manager.create(spec) for _ in range(NUM_PORTS)), return_exceptions=True)
            took_s = time.monotonic() - begin_s
            boxes = [box for box in outcomes if not isinstance(box, BaseException)]
            found = {(await box.info()).ports[8000] for box in boxes}
        finally:
            binding.cancel()
            await asyncio.gather(binding, return_exceptions=True)
            for other in taken:
                other.close()
    ok = len(boxes) == len(found) == NUM_PORTS
    return {
        "ok": ok,
        "created": len(boxes),
        "ports": len(found),
        "ports_taken": len(taken),
        "seconds": round(took_s, 1),
    }


@contextlib.asynccontextmanager
async def _manager(recorder: Recorder) -> AsyncIterator[Manager]:
    """A manager in this process with a store of its own; at the end its sandboxes are deleted."""
    settings = Settings(limits=HostLimits(cpu_overcommit=1000.0))
    with tempfile.TemporaryDirectory(prefix="rollcage-bench-") as folder:
        async with Manager(
            {"local": DockerDriver(default_endpoint())}, folder, settings=settings, recorder=recorder
        ) as manager:
            try:
                yield manager
            finally:
                boxes = [await manager.attach(info.id) for info in await manager.list_sandboxes()]
                await asyncio.gather(*(box.delete() for box in boxes))


@contextlib.asynccontextmanager
async def _driver() -> AsyncIterator[DockerDriver]:
    """A way to the daemon past the manager."""
    driver = DockerDriver(default_endpoint())
    try:
        yield driver
    finally:
        await driver.close()


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system
