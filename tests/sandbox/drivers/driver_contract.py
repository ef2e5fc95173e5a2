"""What every driver promises, as functions of a `Host` that any driver's tests can run.

`CONTRACT` holds for all drivers, the fake one too; `GUEST_CONTRACT` needs real commands inside.

    @pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)
    def test_my_driver(promise, ...):
        asyncio.run(promise(Host(make_driver, spec, manager)))
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from rollcage.sandbox.archive import pack, unpack
from rollcage.sandbox.drivers.base import (
    LABEL_GENERATION,
    LABEL_MANAGER,
    LABEL_RECORD,
    LABEL_SANDBOX,
    Container,
    Driver,
    HostEvent,
    Observed,
)
from rollcage.sandbox.errors import GuestLost, HostUnavailable, ImageMissing, SandboxUnavailable, StartFailed
from rollcage.sandbox.manager.reading import read_file
from rollcage.sandbox.types import ExecRequest, SandboxSpec


@dataclass(frozen=True)
class Host:
    """A host to test on.

    Attributes:
        make: returns a new driver of that same host.
        spec: of a small container that waits.
        manager: label of what the tests make; must be new.
        folder: for local files.
        clock: seconds since the epoch, as the host counts them.
    """

    make: Callable[[], Driver]
    spec: SandboxSpec
    manager: str
    folder: Path
    clock: Callable[[], float] = time.time

    def container(self, name: str, *, spec: SandboxSpec | None = None, image: str = "") -> Container:
        """Return a container to be, of this test."""
        return Container(self.full(name), spec or self.spec, image, self.labels(name))

    def full(self, name: str) -> str:
        """Return a name that is this test's own."""
        return f"rollcage-{self.manager}-{name}"

    def labels(self, name: str) -> Mapping[str, str]:
        """Return the labels of a container or image."""
        return {
            LABEL_MANAGER: self.manager,
            LABEL_SANDBOX: name,
            LABEL_GENERATION: "1",
            LABEL_RECORD: '{"key": "a \\"b\\" ü"}',
        }

    @asynccontextmanager
    async def driver(self) -> AsyncIterator[Driver]:
        """Yield a driver; in the end nothing of this test is left on the host."""
        driver = self.make()
        try:
            yield driver
        finally:
            cleaner = self.make()
            for observed in await cleaner.list_containers(self.manager):
                await cleaner.remove(observed.name)
            for image in await cleaner.list_images(self.manager):
                await cleaner.remove_image(image)
            assert await cleaner.list_containers(self.manager) == []
            assert await cleaner.list_images(self.manager) == []
            await cleaner.close()
            await driver.close()


Promise = Callable[[Host], Awaitable[None]]


async def until(condition: Callable[[], Awaitable[bool]], timeout_s: float = 10.0) -> None:
    """Wait until it holds, or fail."""
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.02)


async def status(driver: Driver, name: str) -> str:
    """Return a container's status, "" where there is none."""
    observed = await driver.inspect(name)
    return observed.status if observed else ""


async def a_container_is_created_once_and_runs(host: Host) -> None:
    async with host.driver() as driver:
        before = host.clock()
        await driver.create(host.container("a"))
        await driver.create(host.container("a"))
        await asyncio.gather(*(driver.create(host.container("b")) for _ in range(5)))
        found = {observed.name: observed for observed in await driver.list_containers(host.manager)}
        assert set(found) == {host.full("a"), host.full("b")}
        observed = found[host.full("a")]
        assert await driver.inspect(host.full("a")) == observed
        assert (observed.status, observed.exit_code, observed.oom_killed) == ("running", None, False)
        assert observed.labels.items() >= host.labels("a").items()
        assert before - 2 <= observed.started_at <= host.clock() + 2
        assert await driver.list_containers(host.manager + "x") == []


async def what_is_not_there_is_no_error(host: Host) -> None:
    async with host.driver() as driver:
        name = host.full("nobody")
        assert await driver.inspect(name) is None
        assert await driver.logs(name, num_lines=10) == ""
        await driver.kill(name)
        await driver.remove(name)
        await driver.remove_image(f"rollcage-{host.manager}:nope")
        assert await driver.list_images(host.manager) == []
        with pytest.raises(SandboxUnavailable):
            await driver.connect(name, host.spec)


async def a_killed_container_has_ended(host: Host) -> None:
    async with host.driver() as driver:
        await driver.create(host.container("a"))
        await driver.kill(host.full("a"))
        await until(lambda: _is(driver, host.full("a"), "exited"))
        observed = await driver.inspect(host.full("a"))
        assert observed is not None
        assert observed.exit_code == 137
        await driver.kill(host.full("a"))
        with pytest.raises(SandboxUnavailable):
            await driver.connect(host.full("a"), host.spec)
        assert [one.name for one in await driver.list_containers(host.manager)] == [host.full("a")]


async def _is(driver: Driver, name: str, wanted: str) -> bool:
    return await status(driver, name) == wanted


async def a_removed_container_is_gone_and_its_name_is_free(host: Host) -> None:
    async with host.driver() as driver:
        await driver.create(host.container("a"))
        await driver.remove(host.full("a"))
        await driver.remove(host.full("a"))
        assert await driver.inspect(host.full("a")) is None
        assert await driver.list_containers(host.manager) == []
        await driver.create(host.container("a"))
        assert await status(driver, host.full("a")) == "running"


async def pausing_is_idempotent(host: Host) -> None:
    async with host.driver() as driver:
        name = host.full("a")
        await driver.create(host.container("a"))
        for wanted, change in (("paused", driver.pause), ("running", driver.unpause)) * 2:
            await change(name)
            await change(name)
            assert await status(driver, name) == wanted
        await driver.pause(name)
        await driver.remove(name)
        assert await driver.inspect(name) is None


async def images_are_listed_oldest_first_and_can_be_removed(host: Host) -> None:
    async with host.driver() as driver:
        await driver.create(host.container("a"))
        images = [f"rollcage-{host.manager}:{tag}" for tag in ("z", "a")]
        for image in images:
            await driver.commit(host.full("a"), image, host.labels("a"))
            await asyncio.sleep(1.1)  # Docker counts seconds
        assert await driver.list_images(host.manager) == images
        assert await driver.list_images(host.manager + "x") == []
        await driver.remove(host.full("a"))
        await driver.create(host.container("b", image=images[0]))
        assert await status(driver, host.full("b")) == "running"
        await driver.remove_image(images[1])
        assert await driver.list_images(host.manager) == images[:1]


async def an_unknown_image_is_told(host: Host) -> None:
    async with host.driver() as driver:
        with pytest.raises(ImageMissing):
            await driver.create(host.container("a", image=f"rollcage-{host.manager}:nope"))
        await driver.remove(host.full("a"))
        with pytest.raises(ImageMissing):
            await driver.create(host.container("a", spec=replace(host.spec, image=f"rollcage-{host.manager}-nope")))


async def what_happens_is_told(host: Host) -> None:
    async with host.driver() as driver:
        events: list[HostEvent] = []

        async def listen() -> None:
            async for event in driver.events(host.manager):
                events.append(event)

        listening = asyncio.create_task(listen())
        name, first = host.full("a"), host.full("first")
        await driver.create(host.container("first"))
        async with asyncio.timeout(30):
            while not events:  # so that from here on nothing is missed
                await driver.pause(first)
                await driver.unpause(first)
                await asyncio.sleep(0.05)
        await driver.create(host.container("a"))
        await driver.create(replace(host.container("other"), labels={LABEL_MANAGER: host.manager + "x"}))
        await driver.pause(name)
        await driver.unpause(name)
        await driver.kill(name)
        await until(lambda: _is(driver, name, "exited"))
        await driver.remove(name)
        await driver.remove(host.full("other"))
        async with asyncio.timeout(10):
            while not any(event.kind == "destroy" for event in events):
                await asyncio.sleep(0.02)
        listening.cancel()
        await asyncio.wait([listening])
        await driver.remove(first)
        assert {event.container for event in events} == {name, first}
        told = [event for event in events if event.container == name]
        assert [event.kind for event in told] == ["start", "pause", "unpause", "die", "destroy"]
        assert told[3].exit_code == 137


async def events_end_with_the_driver(host: Host) -> None:
    async with host.driver() as driver:

        async def listen() -> None:
            async for _ in driver.events(host.manager):
                pass

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0.2)
        await driver.close()
        with pytest.raises(HostUnavailable):
            await asyncio.wait_for(listening, 10)


async def containers_outlive_their_driver(host: Host) -> None:
    async with host.driver():
        first = host.make()
        await first.create(host.container("a"))
        await first.close()
        await first.close()
        second = host.make()
        assert [one.status for one in await second.list_containers(host.manager)] == ["running"]
        await second.create(host.container("a"))
        guest = await second.connect(host.full("a"), host.spec)
        await guest.ping(timeout_s=10)
        await guest.close()
        await second.close()


async def a_host_tells_its_size(host: Host) -> None:
    async with host.driver() as driver:
        found = await driver.status()
        assert found.num_cpus >= 1
        assert found.memory_bytes > 0
        assert driver.endpoint


async def two_connections_are_two(host: Host) -> None:
    async with host.driver() as driver:
        await driver.create(host.container("a"))
        first = await driver.connect(host.full("a"), host.spec)
        second = await driver.connect(host.full("a"), host.spec)
        await first.ping(timeout_s=10)
        await first.close()
        await second.ping(timeout_s=10)
        await second.close()


async def written_bytes_are_those_of_running_containers(host: Host) -> None:
    async with host.driver() as driver:
        await driver.create(host.container("a"))
        await driver.create(host.container("b"))
        await driver.kill(host.full("b"))
        await until(lambda: _is(driver, host.full("b"), "exited"))
        assert set(await driver.written_bytes(host.manager)) == {host.full("a")}


async def a_main_process_tells_its_log_and_its_end(host: Host) -> None:
    async with host.driver() as driver:
        command = ("sh", "-c", "seq 1000; echo err >&2; echo $COLOUR; exit 3")
        spec = replace(host.spec, command=command, env={"COLOUR": "blue"})
        await driver.create(host.container("a", spec=spec))
        await until(lambda: _is(driver, host.full("a"), "exited"))
        observed = await driver.inspect(host.full("a"))
        assert isinstance(observed, Observed)
        assert observed.exit_code == 3

        async def all_is_told() -> bool:  # a host writes its log behind the end, and stderr in no order with stdout
            return {"1", "1000", "blue", "err"} <= set((await driver.logs(host.full("a"), num_lines=2000)).split())

        await until(all_is_told)
        assert len((await driver.logs(host.full("a"), num_lines=3)).split()) == 3
        assert len((await driver.logs(host.full("a"), num_lines=5000)).split()) == 1002


async def a_main_process_that_is_no_program_fails_the_start(host: Host) -> None:
    async with host.driver() as driver:
        with pytest.raises(StartFailed):
            await driver.create(host.container("a", spec=replace(host.spec, command=("/nope",))))
        await driver.remove(host.full("a"))
        assert await driver.list_containers(host.manager) == []


async def commands_and_files_work_inside(host: Host) -> None:
    async with host.driver() as driver:
        spec = replace(host.spec, env={"COLOUR": "blue"})
        await driver.create(host.container("a", spec=spec))
        guest = await driver.connect(host.full("a"), spec)
        result = await guest.exec(ExecRequest("echo $COLOUR; basename $(pwd); exit 4"))
        assert (result.exit_code, result.stdout_text.split()) == (4, ["blue", spec.workdir.rpartition("/")[2]])
        await guest.put(pack(b"data", "file"), "new/folder", timeout_s=10)
        assert await read_file(guest.get("new/folder/file", timeout_s=10), "new/folder/file", 100) == b"data"
        await unpack(guest.get("new", timeout_s=10), host.folder / "back")
        assert (host.folder / "back" / "folder" / "file").read_bytes() == b"data"
        session = await guest.open_session(env={"X": "1"}, cwd="")
        await session.run("cd new; Y=2")
        assert (await session.run("echo $COLOUR $X $Y; cat folder/file")).stdout == b"blue 1 2\ndata"
        await session.close()
        assert (await driver.written_bytes(host.manager))[host.full("a")] >= 4
        await guest.close()


async def a_snapshot_holds_the_files(host: Host) -> None:
    async with host.driver() as driver:
        await driver.create(host.container("a"))
        guest = await driver.connect(host.full("a"), host.spec)
        await guest.exec(ExecRequest("mkdir d; echo before > d/file; ln -s file d/link"))
        image = f"rollcage-{host.manager}:one"
        await driver.commit(host.full("a"), image, host.labels("a"))
        await guest.exec(ExecRequest("echo after > d/file"))
        await guest.close()
        await driver.create(host.container("b", image=image))
        guest = await driver.connect(host.full("b"), host.spec)
        assert (await guest.exec(ExecRequest("cat d/link"))).stdout == b"before\n"
        await guest.close()


async def death_ends_all_processes_and_connections(host: Host) -> None:
    async with host.driver() as driver:
        await driver.create(host.container("a"))
        guest = await driver.connect(host.full("a"), host.spec)
        await guest.exec(
            ExecRequest("(setsid sh -c 'while :; do date +%s%N > beat; sleep 0.05; done' >/dev/null 2>&1 &)")
        )
        running = asyncio.create_task(guest.exec(ExecRequest("sleep 600")))
        await asyncio.sleep(0.3)
        await driver.kill(host.full("a"))
        with pytest.raises(GuestLost):
            await asyncio.wait_for(running, 10)
        await guest.close()


CONTRACT: tuple[Promise, ...] = (
    a_container_is_created_once_and_runs,
    what_is_not_there_is_no_error,
    a_killed_container_has_ended,
    a_removed_container_is_gone_and_its_name_is_free,
    pausing_is_idempotent,
    images_are_listed_oldest_first_and_can_be_removed,
    an_unknown_image_is_told,
    what_happens_is_told,
    events_end_with_the_driver,
    containers_outlive_their_driver,
    a_host_tells_its_size,
    two_connections_are_two,
    written_bytes_are_those_of_running_containers,
)
GUEST_CONTRACT: tuple[Promise, ...] = (
    a_main_process_tells_its_log_and_its_end,
    a_main_process_that_is_no_program_fails_the_start,
    commands_and_files_work_inside,
    a_snapshot_holds_the_files,
    death_ends_all_processes_and_connections,
)
