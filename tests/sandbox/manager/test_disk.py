"""Disk: the gate's hysteresis, and how fast the watcher finds who writes too much."""

import asyncio
from collections.abc import Mapping
from itertools import pairwise

import pytest

from rollcage.sandbox.drivers.base import LABEL_MANAGER, Container
from rollcage.sandbox.drivers.fake import FakeDriver
from rollcage.sandbox.errors import DiskPressure, HostUnavailable
from rollcage.sandbox.manager.disk import DiskGate, watch_disk
from rollcage.sandbox.types import MIB, SandboxSpec
from rollcage.trainer.clock import run_virtual

GIB = 1024 * MIB


def test_the_gate_is_open_until_it_knows_better_and_what_is_unknown_changes_nothing():
    gate = DiskGate(min_free_bytes=GIB)
    gate.check("a")
    assert gate.update(None) is False
    assert gate.update(GIB - 1) is True
    assert gate.update(None) is True


def test_the_gate_opens_again_only_well_above_where_it_closed():
    gate = DiskGate(min_free_bytes=1000, min_free_share=0.0, hysteresis=1.5)
    answers = [gate.update(free) for free in (1000, 999, 1000, 1499, 1500, 1000, 999)]
    assert answers == [False, True, True, True, False, False, True]


def test_a_level_that_trembles_about_the_mark_flips_the_gate_once():
    gate = DiskGate(min_free_bytes=1000, min_free_share=0.0)
    answers = [gate.update(1000 + (-1) ** number) for number in range(100)]
    assert sum(before != after for before, after in pairwise(answers)) == 1


def test_a_share_of_a_large_disk_closes_the_gate_before_the_bytes_do():
    gate = DiskGate(min_free_bytes=GIB, min_free_share=0.05)
    assert gate.update(40 * GIB, 1000 * GIB) is True
    assert gate.update(40 * GIB) is False  # of unknown size: the bytes alone count


def test_S17_a_closed_gate_says_how_much_is_free_and_how_much_is_needed():
    gate = DiskGate(min_free_bytes=1000 * MIB, hysteresis=1.25)
    gate.update(700 * MIB)
    with pytest.raises(DiskPressure, match=r"'a' has 700 MiB .* below 1000 MiB.*until 1250 MiB"):
        gate.check("a")


class Written(FakeDriver):
    """A host whose containers have written so many bytes."""

    def __init__(self, written: Mapping[str, int], *, call_s: float = 0.0) -> None:
        super().__init__()
        self.written, self.call_s, self.num_looks, self.num_open = dict(written), call_s, 0, 0

    async def written_bytes(self, manager: str) -> Mapping[str, int]:
        assert manager == "m"
        self.num_looks += 1
        self.num_open += 1
        assert self.num_open == 1, "two looks at once"
        try:
            answer = dict(self.written)  # what is written after the host began to count is found next time
            await asyncio.sleep(self.call_s)
            if self.down:
                raise HostUnavailable("down")
            return answer
        finally:
            self.num_open -= 1


class Stops:
    """Records who was stopped, and when."""

    def __init__(self, takes_s: float = 0.0, fails: int = 0) -> None:
        self.takes_s, self.fails = takes_s, fails
        self.begun: list[tuple[float, str, str]] = []

    async def __call__(self, name: str, reason: str) -> None:
        self.begun.append((asyncio.get_running_loop().time(), name, reason))
        await asyncio.sleep(self.takes_s)
        if len(self.begun) <= self.fails:
            raise HostUnavailable("cannot stop it now")

    @property
    def names(self) -> list[str]:
        return [name for _, name, _ in self.begun]


async def watched(driver: FakeDriver, limits: Mapping[str, int], stops: Stops, *, for_s: float) -> None:
    """Watch for so long, then cancel."""
    watch = asyncio.create_task(watch_disk(driver, "m", lambda: limits, stops))
    await asyncio.sleep(for_s)
    assert not watch.done(), watch
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch


@pytest.mark.parametrize("call_s", [0.0, 1.0, 2.5, 4.0])
def test_an_offender_is_found_within_ten_seconds_whenever_it_writes_and_however_slowly_the_host_counts(call_s: float):
    for tenth in range(0, 120, 3):
        driver, stops = Written({"a": 0, "b": 0}, call_s=call_s), Stops()

        async def main(driver: Written = driver, stops: Stops = stops, at_s: float = tenth / 10) -> None:
            asyncio.get_running_loop().call_at(at_s, driver.written.update, {"a": 11 * MIB})
            await watched(driver, {"a": 10 * MIB, "b": 10 * MIB}, stops, for_s=at_s + 10)

        run_virtual(main)
        assert "a" in stops.names
        assert set(stops.names) == {"a"}
        assert stops.begun[0][2] == "wrote 11.0 MiB; disk_bytes allows 10.0 MiB"


def test_exactly_the_limit_is_allowed_and_those_without_limit_are_left_alone():
    driver, stops = Written({"a": 10, "free": 10**12}), Stops()
    run_virtual(lambda: watched(driver, {"a": 10}, stops, for_s=30))
    assert stops.begun == []


def test_nobody_is_counted_while_there_are_no_limits():
    driver = Written({"a": 10})
    run_virtual(lambda: watched(driver, {}, Stops(), for_s=60))
    assert driver.num_looks == 0


def test_a_slow_stop_holds_up_neither_other_stops_nor_looks_and_is_not_begun_twice():
    driver, stops = Written({"a": 20, "b": 0}), Stops(takes_s=100)

    async def main() -> None:
        asyncio.get_running_loop().call_at(5.0, driver.written.update, {"b": 20})
        await watched(driver, {"a": 10, "b": 10}, stops, for_s=30)

    run_virtual(main)
    assert stops.names == ["a", "b"]
    assert driver.num_looks == 10


def test_a_stop_that_failed_or_did_not_help_is_begun_again():
    driver, stops = Written({"a": 20}), Stops(fails=2)
    run_virtual(lambda: watched(driver, {"a": 10}, stops, for_s=8))
    assert stops.names == ["a", "a", "a"]


def test_a_host_that_fails_or_hangs_is_asked_again():
    driver, stops = Written({"a": 20}), Stops()

    async def main() -> None:
        driver.down = True
        asyncio.get_running_loop().call_at(4.0, setattr, driver, "down", False)
        asyncio.get_running_loop().call_at(0.5, setattr, driver, "call_s", 1e9)
        asyncio.get_running_loop().call_at(4.5, setattr, driver, "call_s", 0.0)
        await watched(driver, {"a": 10}, stops, for_s=11)

    run_virtual(main)
    assert stops.begun[0][0] == 10.0  # asked at 0 (down), 3 (hangs for 6, then a pause of 1) and 10


def test_one_that_went_away_while_the_host_counted_is_not_stopped():
    driver, stops, limits = Written({"a": 20}, call_s=1.0), Stops(), {"a": 10}

    async def main() -> None:
        asyncio.get_running_loop().call_at(0.5, limits.clear)
        await watched(driver, limits, stops, for_s=10)

    run_virtual(main)
    assert stops.begun == []


def test_an_error_that_is_no_sandbox_error_ends_the_watch_loudly():
    async def broken(name: str, reason: str) -> None:
        raise ZeroDivisionError

    async def main() -> None:
        await watch_disk(Written({"a": 20}), "m", lambda: {"a": 10}, broken)

    with pytest.raises(ExceptionGroup) as caught:
        run_virtual(main)
    assert caught.group_contains(ZeroDivisionError)


def test_the_shipped_fake_is_watched_as_a_real_host_is():
    stops = Stops()

    async def main() -> None:
        driver = FakeDriver()
        await driver.create(Container("box", SandboxSpec(disk_bytes=MIB), labels={LABEL_MANAGER: "m"}))
        driver.containers["box"].num_written_bytes = 2 * MIB
        await watched(driver, {"box": MIB}, stops, for_s=1)
        await driver.close()

    run_virtual(main)
    assert stops.names == ["box"]
