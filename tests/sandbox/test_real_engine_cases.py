"""Cases S1 to S3, S9 to S14 and S18 on a real daemon, through the manager: what happens inside of sandboxes."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.sandbox.real_engine import Real, error_of, until

from rollcage.sandbox.base import Sandbox
from rollcage.sandbox.errors import SandboxRestarted, SandboxUnavailable, UnsafePath
from rollcage.sandbox.types import MIB, ExecResult, Output, Probe, RestartPolicy, SandboxSpec, State

QUICK_PROBE = Probe(interval_s=0.3, timeout_s=2.0)


@pytest.fixture
def real(docker_endpoint: str, manager_id: str, base_image: str, bare_image: str, tmp_path: Path) -> Real:
    return Real(docker_endpoint, base_image, bare_image, tmp_path / "store", manager_id)


@pytest.fixture(params=["agent", "without Python"])
def image(request: pytest.FixtureRequest, real: Real) -> str:
    return real.image if request.param == "agent" else real.bare_image


def test_S1_a_background_child_and_a_busy_loop_die_at_the_deadline(real: Real, image: str) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            box = await manager.create(SandboxSpec(image=image))
            before = await real.top(f"rollcage-{box.id}-1")
            begin_s = time.monotonic()
            result = await box.exec(["sh", "-c", "sleep 600 & while :; do :; done"], timeout_s=2.0)
            assert time.monotonic() - begin_s < 4.0
            assert result.timed_out

            async def has_no_survivor() -> bool:
                return sorted(await real.top(f"rollcage-{box.id}-1")) == sorted(before)

            await until(has_no_survivor, 2.0)
            assert (await box.exec("echo ok")).stdout == b"ok\n"

    asyncio.run(main())


def test_S2_a_background_child_does_not_block(real: Real, image: str) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            box = await manager.create(SandboxSpec(image=image))
            begin_s = time.monotonic()
            result = await box.exec(["sh", "-c", "sleep 30 & echo hi"])
            assert time.monotonic() - begin_s < 1.0
            assert (result.stdout, result.exit_code, result.timed_out) == (b"hi\n", 0, False)

    asyncio.run(main())


def test_S3_output_before_the_deadline_is_not_lost(real: Real, image: str) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            box = await manager.create(SandboxSpec(image=image))
            result = await box.exec("echo A; sleep 30", timeout_s=1.0)
            assert (result.timed_out, result.stdout) == (True, b"A\n")

    asyncio.run(main())


def test_S9_a_call_to_a_killed_sandbox_says_how_it_died(real: Real) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            spec = SandboxSpec(image=real.image, command=("sh", "-c", "echo last words; exec sleep 600"))
            box = await manager.create(spec)
            await real.kill(f"rollcage-{box.id}-1")
            error = await error_of(box.exec("true"))
            assert isinstance(error, SandboxUnavailable)
            assert (error.state, error.exit_code, error.oom_killed) == (State.FAILED, 137, False)
            assert error.log_tail == "last words\n"

    asyncio.run(main())


def test_S9_a_sandbox_without_bin_becomes_unhealthy(real: Real) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            box = await manager.create(SandboxSpec(image=real.image, user="0:0", probe=QUICK_PROBE))
            await box.exec("rm -rf /bin")

            async def is_unhealthy() -> bool:
                return (await box.info()).state is State.UNHEALTHY

            await until(is_unhealthy, 10.0)
            assert "/bin/sh" in (await box.info()).message

    asyncio.run(main())


def test_S10_policy_restore_brings_files_back_and_tells_the_call_in_flight(real: Real) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            box = await manager.create(SandboxSpec(image=real.image, restart=RestartPolicy.RESTORE))
            await box.put(b"saved", "checkpoint")
            await box.snapshot()
            await box.put(b"lost", "later")
            running = asyncio.create_task(error_of(box.exec("sleep 60")))
            await asyncio.sleep(0.3)
            begin_s = time.monotonic()
            await real.kill(f"rollcage-{box.id}-1")
            error = await running
            assert isinstance(error, SandboxRestarted)
            assert error.generation == 2
            result = await box.exec("cat checkpoint; ls")
            assert time.monotonic() - begin_s < 10.0
            assert (result.stdout, result.generation) == (b"savedcheckpoint\n", 2)
            assert await real.containers() == [f"rollcage-{box.id}-2"]

    asyncio.run(main())


def test_S10_policy_fail_fails(real: Real) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            box = await manager.create(SandboxSpec(image=real.image))
            await real.kill(f"rollcage-{box.id}-1")

            async def has_failed() -> bool:
                return (await box.info()).state is State.FAILED

            await until(has_failed, 10.0)  # although nobody calls it

            async def is_removed() -> bool:
                return await real.containers() == []

            await until(is_removed, 5.0)

    asyncio.run(main())


def test_S11_a_child_killed_for_memory_is_told_and_the_sandbox_goes_on(real: Real, image: str) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            box = await manager.create(SandboxSpec(image=image, memory_bytes=64 * MIB))
            result = await box.exec("head -c 209715200 /dev/zero | tail; echo survived", timeout_s=30.0)
            assert result.oom_killed
            result = await box.exec("echo usable")
            assert (result.stdout, result.oom_killed, result.generation) == (b"usable\n", False, 1)

    asyncio.run(main())


def test_S12_a_fork_bomb_harms_itself_only_and_one_kill_clears_it(real: Real) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            spec = SandboxSpec(image=real.image, num_pids=64)
            bombed, other = await asyncio.gather(manager.create(spec), manager.create(spec))
            bomb = asyncio.create_task(bombed.exec("bomb() { bomb | bomb & }; bomb; sleep 30", timeout_s=4.0))
            await asyncio.sleep(1.0)
            begin_s = time.monotonic()
            assert (await other.exec("echo ok")).stdout == b"ok\n"
            assert time.monotonic() - begin_s < 1.0
            result = await bomb
            assert result.timed_out or not result.ok

            async def is_cleared() -> bool:
                return not [it for it in await real.top(f"rollcage-{bombed.id}-1") if "bomb" in it]

            await until(is_cleared, 10.0)
            assert (await bombed.exec("echo on")).stdout == b"on\n"

    asyncio.run(main())


def test_S13_bytes_are_exact_and_text_never_fails(real: Real, image: str) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            box = await manager.create(SandboxSpec(image=image))
            result = await box.exec("printf '\\377ok'")
            assert (result.stdout, result.stdout_text) == (b"\xffok", "\ufffdok")
            pieces, last = await gather(box, "printf '\\303'; sleep 0.3; printf '\\251'")
            assert pieces == [b"\xc3", b"\xa9"], "a character split across chunks"
            assert last.stdout_text == "é"

    asyncio.run(main())


async def gather(box: Sandbox, command: str) -> tuple[list[bytes], ExecResult]:
    """Return the pieces of a command's output, and its result."""
    pieces = []
    async for item in box.stream(command):
        if isinstance(item, Output):
            pieces.append(item.data)
        else:
            return pieces, item
    raise AssertionError("a stream without a result")


def test_S14_a_flood_of_output_is_cut_and_costs_the_manager_no_memory(real: Real) -> None:
    async def main() -> None:
        async with real.kept() as (keeper, client):
            box = await client.create(SandboxSpec(image=real.image))
            await box.exec("true")
            before = keeper.memory_bytes()
            result = await box.exec("yes | head -c 1G", max_output_bytes=MIB, timeout_s=60.0)
            assert keeper.peak_bytes() - before < 32 * MIB
            assert (result.exit_code, result.truncated, result.num_stdout_bytes) == (0, True, 1 << 30)
            assert MIB // 2 < len(result.stdout) <= MIB
            assert result.stdout.startswith(b"y\ny\n")
            assert result.stdout.endswith(b"y\ny\n")

    asyncio.run(main())


def test_S18_five_mebibytes_into_a_missing_folder(real: Real, image: str) -> None:
    async def main() -> None:
        async with real.managed() as manager:
            box = await manager.create(SandboxSpec(image=image))
            data = os.urandom(5 * MIB)
            begin_s = time.monotonic()
            await box.put(data, "/work/not/there/file")
            assert time.monotonic() - begin_s < 5.0
            assert await box.read("/work/not/there/file") == data

    asyncio.run(main())


def test_S18_much_each_way_costs_the_manager_little_memory(real: Real, tmp_path: Path) -> None:
    async def main() -> None:
        source, copy = tmp_path / "source", tmp_path / "copy"
        block = os.urandom(MIB)
        with source.open("wb") as file:
            for _ in range(150):  # 500 in benchmarks/sandbox
                file.write(block)
        async with real.kept() as (keeper, client):
            box = await client.create(SandboxSpec(image=real.image))
            before = keeper.memory_bytes()
            await box.put(source, "big")
            await box.get("big", copy)
            assert keeper.peak_bytes() - before < 64 * MIB
        assert digest(copy) == digest(source)

    asyncio.run(main())


def digest(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@pytest.mark.parametrize(
    ("name", "kind", "link"),
    [
        ("../evil", tarfile.REGTYPE, ""),
        ("/etc/evil", tarfile.REGTYPE, ""),
        ("link", tarfile.SYMTYPE, "/etc"),
        ("link", tarfile.SYMTYPE, "../.."),
        ("device", tarfile.CHRTYPE, ""),
    ],
)
def test_S18_members_that_lead_out_are_refused_either_way(
    name: str, kind: bytes, link: str, real: Real, tmp_path: Path
) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        archive.addfile(member)

    async def chunks() -> AsyncIterator[bytes]:
        yield buffer.getvalue()

    async def main() -> None:
        async with real.managed() as manager:
            box = await manager.create(SandboxSpec(image=real.image))
            assert isinstance(await error_of(box.put_archive(chunks(), "/work/in")), UnsafePath)
            if link:
                await box.exec(f"mkdir out; ln -s {link} out/link")
                assert isinstance(await error_of(box.get("out", tmp_path / "out")), UnsafePath)
                assert not (tmp_path / "out").exists()

    asyncio.run(main())
