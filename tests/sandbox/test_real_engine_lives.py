"""Cases S4 to S8, S15 to S17, S19 and S20 on a real daemon, through the manager: how sandboxes come, stay and go."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.real_engine import QUICK, Real, error_of, until

from rollcage.sandbox.chaos.proxy import Proxy
from rollcage.sandbox.chaos.schedule import Fault
from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.errors import (
    DiskPressure,
    HostUnavailable,
    SandboxNotFound,
    StartFailed,
    StartTimeout,
)
from rollcage.sandbox.types import RestartPolicy, SandboxSpec, State


@pytest.fixture
def real(docker_endpoint: str, manager_id: str, base_image: str, bare_image: str, tmp_path: Path) -> Real:
    return Real(docker_endpoint, base_image, bare_image, tmp_path / "store", manager_id)


@contextlib.asynccontextmanager
async def silent_daemon(folder: Path) -> AsyncIterator[str]:
    """The endpoint of a daemon that takes every connection and never answers."""
    writers = []

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError):
            while await reader.read(1 << 16):
                pass
        writer.close()

    server = await asyncio.start_unix_server(say_nothing, folder / "silent")
    try:
        async with server:
            yield f"unix://{folder}/silent"
    finally:
        for writer in writers:
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def test_S4_a_daemon_that_never_answers_costs_only_its_own_calls(real: Real, tmp_path: Path) -> None:
    async def main() -> None:
        async with silent_daemon(tmp_path) as endpoint:
            silent = DockerDriver(endpoint, call_timeout_s=1.0, slow_timeout_s=1.0)
            spec = SandboxSpec(image=real.image)
            calls = (
                *(silent.inspect("x"), silent.status(), silent.remove("x"), silent.connect("x", spec)),
                *(silent.list_containers("x"), silent.commit("x", "y:z", {}), silent.logs("x", num_lines=1)),
            )
            begin_s = time.monotonic()
            assert {type(error) for error in await asyncio.gather(*map(error_of, calls))} == {HostUnavailable}
            assert time.monotonic() - begin_s < 2.0
            hosts = {"silent": silent, "here": DockerDriver(real.endpoint)}
            async with real.managed(replace(QUICK, open_s=1.0), hosts=hosts) as manager:
                boxes = await asyncio.gather(*(manager.create(spec, deadline_s=20.0) for _ in range(4)))
                assert {(await box.info()).host for box in boxes} == {"here"}
                results = await asyncio.gather(*(box.exec("echo done") for box in boxes))
                assert [result.stdout for result in results] == [b"done\n"] * 4
                conditions = {host.name: host.condition for host in await manager.hosts()}
                assert conditions["here"] == "open"

    asyncio.run(main())


def test_S5_a_start_that_never_gets_ready_ends_at_its_deadline_with_its_log(real: Real) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            chatter = "head -c 1048576 /dev/zero | tr '\\0' x | fold -w 100; echo; echo the end; exec sleep 600"
            never = SandboxSpec(
                image=real.image, command=("sh", "-c", chatter), ready_command="false", start_timeout_s=3.0
            )
            begin_s = time.monotonic()
            error, other = await asyncio.gather(
                error_of(manager.create(never)), manager.create(SandboxSpec(image=real.image))
            )
            assert isinstance(error, StartTimeout)
            assert 3.0 <= time.monotonic() - begin_s < 6.0
            assert error.log_tail.endswith("x\nthe end\n")
            assert len(error.log_tail) < 20_000
            assert (await other.exec("echo on")).stdout == b"on\n"
            assert await real.containers() == [f"rollcage-{other.id}-1"]

    asyncio.run(main())


def test_S6_twenty_starts_of_what_is_not_there_leave_nothing(real: Real) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            spec = SandboxSpec(image=real.image, command=("/nope",))
            errors = await asyncio.gather(*(error_of(manager.create(spec)) for _ in range(20)))
            for error in errors:
                assert type(error) is StartFailed
                assert "/nope" in f"{error} {error.log_tail}"
            assert await real.containers() == []

    asyncio.run(main())


def test_S6_a_kill_between_create_and_start_leaves_nothing(real: Real, tmp_path: Path) -> None:
    async def main() -> None:
        reached = asyncio.Event()

        def judge(cycle: int, operation: str, is_stream: bool) -> tuple[Fault | None, float]:
            if operation == "containers start" and not reached.is_set():
                reached.set()
                return Fault.HANG_BEFORE, 0.0
            return None, 0.0

        proxy = Proxy(Path(real.endpoint.removeprefix("unix://")), tmp_path / "proxy", judge)
        await proxy.open()
        try:
            async with real.kept(proxy.endpoint) as (keeper, client):
                creating = asyncio.create_task(error_of(client.create(SandboxSpec(image=real.image))))
                await asyncio.wait_for(reached.wait(), 10.0)
                assert len(await real.containers()) == 1
                await keeper.kill()
                await creating

                async def is_gone() -> bool:
                    return await real.containers() == []

                await until(is_gone, 10.0)
        finally:
            await proxy.close()

    asyncio.run(main())


def test_S7_after_a_kill_the_same_sandboxes_are_usable_and_the_unleased_go(real: Real) -> None:
    async def main() -> None:
        async with real.kept() as (keeper, client):
            spec = SandboxSpec(image=real.image)
            specs = [spec] * 8 + [replace(spec, ttl_s=8.0)] * 2
            boxes = await asyncio.gather(
                *(client.create(spec, key=f"key-{number}") for number, spec in enumerate(specs))
            )
            await asyncio.gather(*(box.put(box.id.encode(), "mine") for box in boxes))
            await keeper.kill()
            for number, (box, spec) in enumerate(zip(boxes, specs, strict=True)):
                again = await client.create(spec, key=f"key-{number}")
                assert again.id == box.id
                assert await again.read("mine") == box.id.encode()
                assert (await again.info()).generation == 1
            kept = sorted(f"rollcage-{box.id}-1" for box in boxes[:8])

            async def are_gone() -> bool:
                return sorted(await real.containers()) == kept

            await until(are_gone, 12.0)
            assert isinstance(await error_of(client.attach(boxes[-1].id)), SandboxNotFound)

    asyncio.run(main())


def test_S8_a_lease_that_is_renewed_in_time_holds_over_a_kill_and_then_ends(real: Real) -> None:
    async def main() -> None:  # two seconds for a minute: benchmarks/sandbox
        async with real.kept() as (keeper, client):
            box = await client.create(SandboxSpec(image=real.image, ttl_s=4.0))
            for number in range(4):
                await box.renew()
                if number == 1:
                    await keeper.kill()
                await asyncio.sleep(1.9)
                assert (await box.exec("true")).ok
            await box.renew()
            renewed_s = time.monotonic()

            async def is_gone() -> bool:
                return await real.containers() == []

            await until(is_gone, 10.0)
            assert 4.0 <= time.monotonic() - renewed_s < 7.0, "one sweep after the last renewal"

    asyncio.run(main())


def test_S15_one_container_per_key_although_the_answers_come_too_late(real: Real, tmp_path: Path) -> None:
    async def main() -> None:
        late = iter([(Fault.DELAY, 3.0)] * 2)

        def judge(cycle: int, operation: str, is_stream: bool) -> tuple[Fault | None, float]:
            return next(late, (None, 0.0)) if operation == "containers create" else (None, 0.0)

        proxy = Proxy(Path(real.endpoint.removeprefix("unix://")), tmp_path / "proxy", judge)
        await proxy.open()
        try:
            async with real.managed(endpoint=proxy.endpoint, call_timeout_s=1.0) as manager:
                spec = SandboxSpec(image=real.image)
                box = await manager.create(spec, key="one")
                assert next(late, None) is None, "both answers were late"
                found = await asyncio.gather(*(manager.create(spec, key="one") for _ in range(100)))
                assert {each.id for each in found} == {box.id}
                new = await asyncio.gather(*(manager.create(spec, key="two") for _ in range(100)))
                assert len({each.id for each in new}) == 1
                assert len(await real.containers()) == 2
        finally:
            await proxy.close()

    asyncio.run(main())


def test_S16_published_ports_lead_in_from_loopback_only(real: Real) -> None:
    async def main() -> None:  # many, while others bind at random: tests/sandbox/drivers/test_docker_network.py
        async with real.managed() as manager:
            spec = SandboxSpec(image=real.image, ports=(8000,))
            boxes = await asyncio.gather(*(manager.create(spec) for _ in range(3)))
            ports = []
            for box in boxes:
                await box.exec(f"echo {box.id} > name; setsid python3 -m http.server 8000 >/dev/null 2>&1 &")
                ports.append((await box.info()).ports[8000])
            assert len(set(ports)) == 3
            for box, port in zip(boxes, ports, strict=True):

                async def answers(port: int = port, name: str = box.id) -> bool:
                    with contextlib.suppress(OSError):
                        reader, writer = await asyncio.open_connection("127.0.0.1", port)
                        writer.write(b"GET /name HTTP/1.0\r\n\r\n")
                        text = await reader.read()
                        writer.close()
                        return name.encode() in text
                    return False

                await until(answers, 10.0)

    asyncio.run(main())


def test_S17_snapshots_beyond_the_retention_go(real: Real) -> None:
    async def main() -> None:  # twenty with a retention of five: benchmarks/sandbox
        async with real.managed(replace(QUICK, max_snapshots_per_sandbox=2)) as manager, real.driver() as driver:
            box = await manager.create(SandboxSpec(image=real.image))
            for number in range(5):
                await box.put(f"{number}".encode(), "number")
                await box.snapshot()
            kept = [snapshot.image for snapshot in await manager.snapshots()]
            assert len(kept) == 2
            assert sorted(await driver.list_images(real.manager_id)) == sorted(kept)
            await box.restore()
            assert await box.read("number") == b"4"
            await box.delete()
            assert await driver.list_images(real.manager_id) == []

    asyncio.run(main())


def test_S17_a_full_disk_takes_no_new_sandboxes(real: Real, monkeypatch: pytest.MonkeyPatch) -> None:
    usage: Any = shutil.disk_usage

    async def main() -> None:
        async with real.managed() as manager:
            box = await manager.create(SandboxSpec(image=real.image))
            monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=100 << 20))

            async def is_full() -> bool:
                return [host.condition for host in await manager.hosts()] == ["full"]

            await until(is_full, 5.0)
            begin_s = time.monotonic()
            error = await error_of(manager.create(SandboxSpec(image=real.image), deadline_s=1.0))
            assert isinstance(error, DiskPressure)
            assert time.monotonic() - begin_s < 3.0
            assert (await box.exec("echo on")).stdout == b"on\n", "those that are there go on"

    asyncio.run(main())


def test_S19_a_warm_pool_gives_each_member_once_and_never_a_dead_one(real: Real) -> None:
    async def main() -> None:  # in the fake world twenty: tests/sandbox/test_pool.py
        async with real.managed() as manager:
            spec = SandboxSpec(image=real.image, cpus=0.1)
            manager.keep_warm(spec, 3)

            async def is_full() -> bool:
                return len(await real.containers()) == 3

            await until(is_full, 20.0)
            await asyncio.sleep(0.5)  # the last one gets ready
            await real.kill((await real.containers())[0])
            boxes = await asyncio.gather(*(manager.create(spec) for _ in range(10)))
            assert len({box.id for box in boxes}) == 10
            results = await asyncio.gather(*(box.exec("echo well") for box in boxes))
            assert [result.stdout for result in results] == [b"well\n"] * 10
            manager.keep_warm(spec, 0)

    asyncio.run(main())


def test_S19_an_image_that_never_gets_ready_never_exceeds_the_target(real: Real) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            manager.keep_warm(SandboxSpec(image=real.image, ready_command="false", start_timeout_s=1.0), 2)
            most = 0
            for _ in range(40):
                most = max(most, len(await real.containers()))
                await asyncio.sleep(0.1)
            assert 1 <= most <= 2

    asyncio.run(main())


def test_S20_a_start_that_timed_out_is_an_error_and_a_restart_has_its_own_start_time(real: Real) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            never = SandboxSpec(image=real.image, ready_command="false", start_timeout_s=1.0)
            for _ in range(2):  # asking again by the same key is a new try, no success
                assert isinstance(await error_of(manager.create(never, key="never")), StartTimeout)
            assert {info.state for info in await manager.list_sandboxes()} == {State.FAILED}

            box = await manager.create(SandboxSpec(image=real.image, restart=RestartPolicy.RESTART))
            first = (await box.info()).started_at
            await real.kill(f"rollcage-{box.id}-1")

            async def is_back() -> bool:
                info = await box.info()
                return info.state is State.READY and info.generation == 2

            await until(is_back, 10.0)
            second = (await box.info()).started_at
            assert second > first > 0
            history = [(event.kind, event.data.get("started_at")) for event in await box.events()]
            assert ("died", first) in history
            assert ("restarted", second) in history

    asyncio.run(main())
