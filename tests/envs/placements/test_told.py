"""What the sandboxes of environments in worker processes measure is told to who listens in this process."""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "zoo"))
import sandbox_zoo  # noqa: F401  (registers zoo/Shell-v0)

from rollcage.envs.placements import EnvConfig, EnvDied, make_placement
from rollcage.envs.placements.told import MAX_OBSERVATIONS, Notes, Relay
from rollcage.recorder import LISTENING, NullRecorder
from rollcage.sandbox.opening import measured_by


class Heard(NullRecorder):
    """Keeps the sums, and the course of every gauge."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self.gauges: dict[str, list[float]] = {}

    def counter(self, name: str, value: float = 1.0, **labels: str) -> None:
        self.counted[f"{name} {labels.get('state', '')}".strip()] += int(value)

    def gauge(self, name: str, value: float, *, at_s: float | None = None, **labels: str) -> None:
        assert at_s is not None
        self.gauges.setdefault(labels["state"], []).append(value)

    def histogram(self, name: str, value: float, **labels: str) -> None:
        self.counted[name] += 1


@pytest.fixture
def heard() -> Iterator[Heard]:
    heard = Heard()
    with measured_by(heard):
        yield heard


def test_commands_and_states_of_the_workers_sandboxes_are_told_and_summed(tmp_path: Path, heard: Heard) -> None:
    async def main() -> None:
        placement = make_placement("process", EnvConfig("zoo/Shell-v0", {"folder": str(tmp_path)}), num_workers=2)
        try:
            handles = [await placement.acquire(deadline_s=30.0) for _ in range(2)]
            for handle in handles:
                await handle.reset(seed=1, options={}, deadline_s=30.0)
            assert heard.gauges["READY"] == [1, 2]
            observation, *_ = await handles[0].step("echo hello", deadline_s=30.0)
            assert observation == "hello\n"
            assert heard.counted["sandbox_exec_seconds"] == 1
            with pytest.raises(EnvDied):
                await handles[1].step("die", deadline_s=30.0)
            assert heard.gauges["READY"][-1] == 1, "what died with its worker is counted no more"
            for handle in handles:
                await handle.release()
        finally:
            await placement.close()

    asyncio.run(main())
    assert heard.gauges["READY"][-1] == 0
    assert heard.counted["sandbox_transitions READY"] == 2
    assert heard.counted["sandbox_transitions DELETED"] == 1


def test_notes_are_bounded_and_told_once() -> None:
    notes = Notes()
    for number in range(2 * MAX_OBSERVATIONS):
        notes.counter("sandbox_orphans", kind="image")
        notes.gauge("sandboxes", number, host="local", state="READY")
        notes.histogram("sandbox_exec_seconds", 0.5)
    rows = notes.take()
    assert rows[:2] == [
        ["counter", "sandbox_orphans", {"kind": "image"}, 2 * MAX_OBSERVATIONS],
        ["gauge", "sandboxes", {"host": "local", "state": "READY"}, 2 * MAX_OBSERVATIONS - 1],
    ]
    assert len(rows) == 2 + MAX_OBSERVATIONS
    assert notes.take() == []


def test_where_nobody_listens_nothing_happens() -> None:
    assert LISTENING == []

    async def main() -> None:
        relay = Relay()
        relay.hear([["counter", "x", {}, 1.0], ["gauge", "y", {}, 2.0]])
        relay.gone()

    asyncio.run(main())
    told: list[Any] = LISTENING
    assert told == []
