"""What the recorder is told, and what a hundred sandboxes cost."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Any

from rollcage.recorder import NullRecorder
from rollcage.sandbox import RestartPolicy, SandboxSpec
from rollcage.sandbox.drivers.base import LABEL_MANAGER, Container
from rollcage.sandbox.types import ExecRequest, ExecResult

Labels = tuple[tuple[str, str], ...]


class Listener(NullRecorder):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.counters: defaultdict[str, float] = defaultdict(float)
        self.gauges: dict[tuple[str, Labels], float] = {}
        self.histograms: defaultdict[str, list[float]] = defaultdict(list)

    def counter(self, name: str, value: float = 1.0, **labels: str) -> None:
        self.counters[" ".join([name, *labels.values()])] += value

    def gauge(self, name: str, value: float, *, at_s: float | None = None, **labels: str) -> None:
        self.gauges[name, tuple(sorted(labels.items()))] = value

    def histogram(self, name: str, value: float, **labels: str) -> None:
        self.histograms[" ".join([name, *labels.values()])].append(value)


def answer(request: ExecRequest) -> ExecResult | None:
    return ExecResult(0, truncated=True) if request.command == "yes" else None


def test_every_metric_is_told(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.recorder = told = Listener()
        world.host.create_s, world.host.commands = 2.0, answer
        manager = await world.manager()
        sandbox = await manager.create(SandboxSpec(restart=RestartPolicy.RESTART, ready_command="ready"))
        phases = {
            phase: told.histograms[f"sandbox_create_seconds {phase}"]
            for phase in ("queue", "create", "connect", "ready")
        }
        assert phases == {"queue": [0.0], "create": [2.0], "connect": [0.0], "ready": [0.0]}
        await sandbox.exec("sleep 3")
        await sandbox.exec("sleep 9", timeout_s=1.0)
        await sandbox.exec("yes")
        assert told.histograms["sandbox_exec_seconds"] == [3.0, 1.0, 0.0]
        assert told.counters["sandbox_exec_timed_out"] == 1
        assert told.counters["sandbox_exec_truncated"] == 1
        next(iter(world.host.containers.values())).num_oom_kills = 2
        await asyncio.sleep(6.0)
        assert told.counters["sandbox_oom_kills"] == 2
        assert "sandbox_probe_seconds true" in told.histograms
        world.host.die(world.host.live()[0], oom_killed=True)
        await asyncio.sleep(3.0)
        assert told.counters["sandbox_oom_kills"] == 3
        assert told.counters["sandbox_restarts died"] == 1
        stray = Container("stray", SandboxSpec(), labels={LABEL_MANAGER: manager.store_id})
        await world.host.create(stray)
        await asyncio.sleep(5.0)
        assert told.counters["sandbox_orphans container"] == 1
        ready = ("sandboxes", (("host", "one"), ("state", "READY")))
        assert told.gauges[ready] == 1
        await sandbox.delete()
        assert set(told.gauges.values()) == {0}

    world.run(scenario)


def test_a_hundred_idle_sandboxes_cost_little(world: Any) -> None:
    async def scenario(world: Any) -> None:
        world.recorder = Listener()
        manager = await world.manager()
        await asyncio.gather(*(manager.create(SandboxSpec(ttl_s=0)) for _ in range(100)))
        begin_s = time.process_time()
        await asyncio.sleep(600.0)
        probes = world.host.calls["ping"]
        assert probes >= 100 * 600 / 5.5 - 100, "their probes are on schedule"
        assert (time.process_time() - begin_s) / 600 < 0.02, "of one core"

    world.run(scenario)
