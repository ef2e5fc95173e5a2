"""How a service ends, and what the next one finds: started as users start it, without containers."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.sandbox.conformance import TICKER, home_of, still_writes, wait_until
from tests.sandbox.service.service_process import ServiceProcess, delete_all, running

from rollcage.sandbox.base import Sandbox
from rollcage.sandbox.client import connection
from rollcage.sandbox.client.address import read_address
from rollcage.sandbox.client.client import Client, connect
from rollcage.sandbox.errors import SandboxNotFound, ServiceUnreachable
from rollcage.sandbox.types import MIB, Output, SandboxSpec

SPEC = SandboxSpec()


def run(folder: Path, use: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60.0), connect(folder) as client:
            await use(client)

    asyncio.run(main())


async def stops(sandbox: Sandbox) -> None:
    async def has_stopped() -> bool:
        return not await still_writes(sandbox)

    await wait_until(has_stopped)


def test_sigterm_cancels_what_runs_and_sandboxes_live_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRY_S", 0.5)
    service = ServiceProcess(tmp_path, "--grace", "1")

    async def use(client: Client) -> None:
        box = await client.create(SPEC, key="mine")
        items = box.stream(f"echo started; {TICKER}")
        assert await anext(items) == Output("stdout", b"started\n")
        assert await asyncio.to_thread(service.stop) == 0
        with pytest.raises(ServiceUnreachable):
            async for _ in items:
                pass
        with pytest.raises(ServiceUnreachable, match="rollcage sandbox serve"):
            await box.info()

    run(tmp_path, use)
    assert read_address(tmp_path) is None
    assert "Traceback" not in service.errors

    async def use_again(client: Client) -> None:
        box = await client.create(SPEC, key="mine")
        assert (await box.info()).generation == 1, "it is the same one"
        await stops(box)
        assert (await box.exec("test -s ticks")).ok
        await box.delete()

    with running(tmp_path):
        run(tmp_path, use_again)


def test_sigterm_lets_a_short_call_end(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path)

    async def use(client: Client) -> None:
        box = await client.create(SPEC)
        calling = asyncio.create_task(box.exec("touch begun; sleep 1; echo done"))

        async def has_begun() -> bool:
            return (await box.exec("test -e begun")).ok

        await wait_until(has_begun)
        stopping = asyncio.create_task(asyncio.to_thread(service.stop))
        assert (await calling).stdout == b"done\n"
        assert await stopping == 0

    run(tmp_path, use)
    delete_all(tmp_path)


def test_after_kill_9_the_next_service_adopts_the_sandboxes(tmp_path: Path) -> None:
    first = ServiceProcess(tmp_path)

    async def use(client: Client) -> None:
        boxes = [await client.create(SPEC) for _ in range(3)]
        session = await boxes[0].session()
        await boxes[0].exec("echo written > file")
        await asyncio.to_thread(first.kill)
        with pytest.raises(ServiceUnreachable):
            await boxes[0].exec("true")
        second = await asyncio.to_thread(ServiceProcess, tmp_path)
        try:
            assert second.address != first.address
            assert (await boxes[0].exec("cat file")).stdout == b"written\n", "the client finds the new service"
            assert {info.id for info in await client.list_sandboxes()} == {box.id for box in boxes}
            with pytest.raises(SandboxNotFound, match="session"):
                await session.run("true")
            for box in boxes:
                await box.delete()
        finally:
            await asyncio.to_thread(second.stop)

    run(tmp_path, use)


def test_a_folder_has_one_service(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        command = [sys.executable, "-m", "rollcage", "sandbox", "serve", "--folder", str(tmp_path)]
        second = subprocess.run([*command, "--endpoint", "process:"], capture_output=True, text=True, timeout=30)
        assert (second.returncode, second.stdout) == (2, "")
        assert len(second.stderr.splitlines()) == 1
        found = read_address(tmp_path)
        assert found is not None
        assert found.address == service.address


def test_a_socket_left_by_a_killed_service_is_no_hindrance(tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    ServiceProcess(tmp_path, "--socket", str(socket)).kill()
    assert socket.exists()

    async def use(client: Client) -> None:
        assert await client.list_sandboxes() == []

    with running(tmp_path, "--socket", str(socket)):
        run(tmp_path, use)


def test_a_client_that_dies_ends_its_command(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\nfrom rollcage.sandbox.client.client import connect\n"
        "async def main():\n    async with connect(sys.argv[1]) as client:\n"
        f"        await (await client.attach(sys.argv[2])).exec({TICKER!r})\n"
        "asyncio.run(main())\n"
    )

    async def use(client: Client) -> None:
        box = await client.create(SPEC)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, str(tmp_path), box.id)

        async def has_begun() -> bool:
            return (await box.exec("test -s ticks")).ok

        await wait_until(has_begun)
        process.kill()
        await process.wait()
        await stops(box)
        await box.delete()

    with running(tmp_path):
        run(tmp_path, use)


def test_a_hundred_requests_side_by_side(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        boxes = await asyncio.gather(*(client.create(SPEC, key=f"key {number % 4}") for number in range(20)))
        assert len({box.id for box in boxes}) == 4
        results = await asyncio.gather(*(boxes[number % 4].exec(f"echo {number}") for number in range(100)))
        assert [int(result.stdout) for result in results] == list(range(100))
        await asyncio.gather(*(box.delete() for box in boxes), return_exceptions=False)
        assert await client.list_sandboxes() == []

    with running(tmp_path):
        run(tmp_path, use)


def test_a_slow_reader_slows_the_command_and_costs_no_memory(tmp_path: Path) -> None:
    with running(tmp_path) as service:

        async def use(client: Client) -> None:
            box = await client.create(SPEC)
            before = service.memory_bytes
            num_bytes = 0
            async for item in box.stream("yes | head -c 200000000; touch done", timeout_s=30.0, max_output_bytes=MIB):
                if isinstance(item, Output) and num_bytes < MIB:
                    num_bytes += len(item.data)
                    await asyncio.sleep(0.05)
                    if num_bytes >= MIB:
                        assert not (await box.exec("test -e done")).ok, "it waits for its reader"
            assert service.memory_bytes - before < 64 * MIB
            await box.delete()

        run(tmp_path, use)


def test_S18_large_files_go_through_in_little_memory(tmp_path: Path) -> None:
    size = 128 * MIB  # benchmarks measure 500 MiB
    source = tmp_path / "source"
    with source.open("wb") as file:
        file.truncate(size)
        file.seek(size // 2)
        file.write(b"middle")
    with running(tmp_path / "state") as service:

        async def use(client: Client) -> None:
            box = await client.create(SPEC)
            home = await home_of(box)
            await box.put(b"x", f"{home}/small")
            before = service.memory_bytes
            await box.put(source, f"{home}/large")
            await box.get(f"{home}/large", tmp_path / "back")
            assert service.peak_bytes - before < 64 * MIB
            await box.delete()

        run(tmp_path / "state", use)
    back = tmp_path / "back"
    assert back.stat().st_size == size
    with back.open("rb") as file:
        file.seek(size // 2)
        assert file.read(6) == b"middle"


def test_concurrent_deletes_and_commands_all_end_in_a_typed_way(tmp_path: Path) -> None:
    from rollcage.sandbox.errors import SandboxError

    async def use(client: Client) -> None:
        box = await client.create(SPEC)
        commands = [asyncio.create_task(box.exec("sleep 5")) for _ in range(5)]
        await asyncio.sleep(0.2)
        ends = await asyncio.gather(*(box.delete() for _ in range(5)), *commands, return_exceptions=True)
        assert ends[:5] == [None] * 5
        assert all(isinstance(end, SandboxError) for end in ends[5:]), ends

    with running(tmp_path):
        run(tmp_path, use)


def test_the_service_tells_prometheus_about_its_sandboxes(tmp_path: Path) -> None:
    with running(tmp_path) as service:

        async def use(client: Client) -> None:
            box = await client.create(SPEC)
            await box.exec("true")
            told = (await asyncio.to_thread(lambda: urlopen(service.told["metrics"], timeout=10).read())).decode()
            assert re.search(r'rollcage_sandboxes\{host="[^"]+",state="READY"\} 1.0', told)
            assert "rollcage_sandbox_exec_seconds_count 1.0" in told
            await box.delete()

        run(tmp_path, use)
