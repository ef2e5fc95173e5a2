"""Commands and files in real containers, through the agent and, in an image without Python, through plain execs."""

from __future__ import annotations

import asyncio
import io
import resource
import tarfile
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.sandbox.drivers.docker_rig import Box, Rig

from rollcage.sandbox.errors import DeadlineExceeded, GuestLost, NoSuchPath, SandboxUnavailable, UnsafePath
from rollcage.sandbox.guest.channel import AgentGuest
from rollcage.sandbox.guest.fallback import ExecGuest
from rollcage.sandbox.types import MIB, ExecRequest, Output, SandboxSpec

OnDocker = Callable[[Callable[[Rig], Any]], None]
SLOW_S = {"rollcage-base": 0.5, "rollcage-bare": 1.5}
"""What a call may take on a busy machine; an exec of Docker's own takes longer."""

both = pytest.mark.parametrize("image", ["rollcage-base", "rollcage-bare"])


async def top(rig: Rig, box: Box) -> list[str]:
    """The commands of all processes of a container, as the host sees them."""
    async with rig.driver._engine.call("list processes") as docker:
        rows = (await docker.containers.container(box.name).top(ps_args="-eo pid,args"))["Processes"]
    return [row[-1] for row in rows]


async def count(rig: Rig, box: Box, words: str) -> int:
    return sum(words in command and "grep" not in command for command in await top(rig, box))


@both
def test_which_way_in(on_docker: OnDocker, image: str) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=image))
        assert isinstance(box.guest, AgentGuest if image == "rollcage-base" else ExecGuest)
        result = await box.sh("echo out; echo err >&2; exit 3")
        assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
        assert (await box.sh("exit 0")).ok
        assert (await box.sh(("printf", "%s-", "a b", "*", "$HOME"))).stdout == b"a b-*-$HOME-"
        assert (await box.sh(("no-such-program",))).exit_code == 127
        assert (await box.sh("echo $A; pwd", env={"A": "x y"}, cwd="/tmp")).stdout == b"x y\n/tmp\n"
        assert (await box.sh("true", cwd="/none")).exit_code not in (0, None)
        assert (await box.sh("wc -c", stdin=b"x" * 300_000)).stdout.strip() == b"300000"
        assert (await box.sh("kill -TERM $$")).signal == 15
        vitals = await box.guest.ping(timeout_s=10)
        assert (vitals.num_oom_kills, vitals.memory_bytes > 0, vitals.num_pids >= 2) == (0, True, True)

    on_docker(scenario)


@both
def test_S1_nothing_survives_the_deadline(on_docker: OnDocker, image: str) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=image))
        started = time.monotonic()
        result = await box.sh(("sh", "-c", "sleep 600 & while :; do :; done"), timeout_s=2)
        assert (result.timed_out, result.exit_code, result.signal) == (True, None, 9)
        assert 1.9 < time.monotonic() - started < 4
        assert await count(rig, box, "sleep 600") == 0
        # one that leaves its session behind is found by its mark
        assert (await box.sh("setsid sh -c 'sleep 601' & setsid sleep 602 & sleep 603", timeout_s=1)).timed_out
        assert not [command for command in await top(rig, box) if "sleep 60" in command]
        assert (await box.sh("echo ok")).stdout == b"ok\n"

    on_docker(scenario)


@both
def test_S2_a_background_child_does_not_block(on_docker: OnDocker, image: str) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=image))
        started = time.monotonic()
        result = await box.sh(("sh", "-c", "sleep 30 & echo hi"))
        assert (result.stdout, result.exit_code) == (b"hi\n", 0)
        assert time.monotonic() - started < SLOW_S[image]
        assert await count(rig, box, "sleep 30") == 1, "it lives on"

    on_docker(scenario)


@both
def test_S3_partial_output_is_never_lost(on_docker: OnDocker, image: str) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=image))
        result = await box.sh("echo A; echo B >&2; sleep 30", timeout_s=1)
        assert (result.timed_out, result.stdout) == (True, b"A\n")
        assert result.stderr.startswith(b"B\n")

    on_docker(scenario)


@both
def test_S11_a_child_killed_for_memory_is_told(on_docker: OnDocker, image: str) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=image, memory_bytes=64 * MIB))
        result = await box.sh("head -c 200000000 /dev/zero | tail -c 190000000 | wc -c; echo on")
        assert result.oom_killed
        assert result.stdout.endswith(b"on\n")
        assert (await box.sh("echo usable")).stdout == b"usable\n"

    on_docker(scenario)


@both
def test_S13_bytes_are_exact(on_docker: OnDocker, image: str) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=image))
        result = await box.sh(r"printf '\377ok\000'; printf '\303'; sleep 0.2; printf '\251'")
        assert result.stdout == b"\xffok\0\xc3\xa9"
        assert result.stdout_text == "\N{REPLACEMENT CHARACTER}ok\0é"

    on_docker(scenario)


@both
def test_S14_a_flood_of_output_is_cut_in_the_middle_and_costs_no_memory(on_docker: OnDocker, image: str) -> None:
    """1 GB at full size is in benchmarks/sandbox; here 100 MB."""

    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=image))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = await box.sh("echo first; yes | head -c 100000000; echo last", timeout_s=60)
        assert (result.truncated, result.num_stdout_bytes) == (True, 100_000_011)
        assert len(result.stdout) <= MIB
        assert result.stdout.startswith(b"first\ny\n")
        assert result.stdout.endswith(b"y\nlast\n")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024

    on_docker(scenario)


@both
def test_output_is_streamed_and_a_slow_reader_slows_it_down(on_docker: OnDocker, image: str) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=image))
        seen: list[tuple[float, Output]] = []

        async def take(output: Output) -> None:
            seen.append((time.monotonic(), output))

        await box.guest.exec(ExecRequest("echo one; sleep 0.7; echo two >&2"), take)
        assert [(output.source, output.data) for _, output in seen] == [("stdout", b"one\n"), ("stderr", b"two\n")]
        assert seen[1][0] - seen[0][0] > 0.5

        async def dawdle(_: Output) -> None:
            await asyncio.sleep(3600)

        running = asyncio.create_task(
            box.guest.exec(ExecRequest("head -c 90000000 /dev/zero; touch done", timeout_s=100), dawdle)
        )
        await asyncio.sleep(1.0)
        assert (await box.sh("ls done")).exit_code != 0, "it waits for its reader"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for _ in range(100):
            if not await count(rig, box, "head -c 90000000"):
                break
            await asyncio.sleep(0.05)
        assert await count(rig, box, "head -c 90000000") == 0, "whoever leaves kills it"

    on_docker(scenario)


@both
def test_a_session_keeps_its_state(on_docker: OnDocker, image: str) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=image))
        session = await box.guest.open_session(env={"A": "1"}, cwd="/tmp")
        assert (await session.run("B=2; f() { echo f$1; }; cd /")).exit_code == 0
        result = await session.run("f $A$B; pwd; false")
        assert (result.stdout, result.exit_code) == (b"f12\n/\n", 1)
        started = time.monotonic()
        assert (await session.run("sleep 55 & echo hi")).stdout == b"hi\n"
        assert time.monotonic() - started < SLOW_S[image]
        late = await session.run("echo partly; sleep 56", timeout_s=1)
        assert (late.timed_out, late.stdout) == (True, b"partly\n")
        assert await count(rig, box, "sleep 56") == 0
        assert (await session.run("echo $B")).stdout == b"2\n", "the shell itself lives on"
        assert (await session.run("while :; do :; done", timeout_s=1)).timed_out
        assert (await session.run("echo ${B:-new}")).stdout == b"new\n", "a shell that hangs is replaced"
        assert (await session.run("if (")).exit_code not in (0, None)
        assert (await session.run("cat")).stdout == b"", "stdin is empty"
        assert (await session.run("exit 7")).exit_code == 7
        assert (await session.run("echo on")).stdout == b"on\n"
        await session.run("sleep 57 &")
        await session.close()
        await session.close()
        for _ in range(50):
            if not await count(rig, box, "sleep 57"):
                break
            await asyncio.sleep(0.05)
        assert await count(rig, box, "sleep 57") == 0

    on_docker(scenario)


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o644
    return info


async def once(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 1000):
        yield data[at : at + 1000]


@both
def test_S18_files_go_in_and_out_and_never_astray(on_docker: OnDocker, image: str) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=image))
        body = bytes(range(256)) * 20480  # 5 MiB
        long = "d" * 90 + "/" + "f" * 90
        await box.guest.put(
            once(
                archive(
                    (member("file"), body),
                    (member(long), b"deep"),
                    (member("sub/file"), body),
                    (member("sub/link", tarfile.SYMTYPE, "file"), b""),
                )
            ),
            "/work/missing/folder",
            timeout_s=30,
        )
        assert (await box.sh(f"cd missing/folder; wc -c <sub/link; cat {long}; stat -c %u:%g file")).stdout.split() == [
            b"5242880",
            b"deep1000:1000",
        ]
        got = b"".join([chunk async for chunk in box.guest.get("/work/missing/folder", timeout_s=30)])
        with tarfile.open(fileobj=io.BytesIO(got)) as tar:
            assert {name for name in tar.getnames() if "." not in name} >= {
                "folder/file",
                f"folder/{long}",
                "folder/sub/link",
            }
            assert tar.extractfile("folder/file").read() == body  # type: ignore[union-attr]

        for bad in (
            member("../up"),
            member("a/../../up"),
            member("/work/absolute"),
            member("out", tarfile.SYMTYPE, "../../etc/passwd"),
            member("out", tarfile.SYMTYPE, "/etc/passwd"),
            member("top", tarfile.SYMTYPE, "other"),
            member("hard", tarfile.LNKTYPE, "/etc/passwd"),
            member("disk", tarfile.BLKTYPE),
            member("pipe", tarfile.FIFOTYPE),
            member("x" * 200 + "/../../up"),
        ):
            with pytest.raises(UnsafePath):
                await box.guest.put(once(archive((bad, b""))), "/work/into", timeout_s=10)
        assert (await box.sh("ls /work/up /work/absolute /up; ls -A into")).stdout == b""

        started = time.monotonic()
        with pytest.raises(NoSuchPath):
            await box.guest.put(once(archive((member("x"), b"y"))), "/proc/nowhere", timeout_s=10)
        with pytest.raises(NoSuchPath):
            [chunk async for chunk in box.guest.get("/work/nothing", timeout_s=10)]
        assert time.monotonic() - started < 2 * SLOW_S[image]

        async def never() -> AsyncIterator[bytes]:
            yield archive((member("x"), b"y"))[:700]
            await asyncio.sleep(3600)

        with pytest.raises(DeadlineExceeded):
            await box.guest.put(never(), "/work/slow", timeout_s=0.5)

    on_docker(scenario)


@both
def test_S18_a_large_file_passes_through_without_staying(on_docker: OnDocker, image: str) -> None:
    """500 MiB each way at full size is in benchmarks/sandbox; here 100."""

    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=image))
        size = 100 * MIB
        header = member("big")
        header.size = size

        async def chunks() -> AsyncIterator[bytes]:
            yield header.tobuf()
            for _ in range(size // MIB):
                yield bytes(MIB)
            yield bytes(10240)

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await box.guest.put(chunks(), "/work", timeout_s=60)
        got = 0
        async for chunk in box.guest.get("/work/big", timeout_s=60):
            got += len(chunk)
        assert got >= size
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024

    on_docker(scenario)


@both
def test_S9_an_inside_without_programs_is_told_by_the_probe(on_docker: OnDocker, image: str) -> None:
    async def scenario(rig: Rig) -> None:
        box = await rig.start(SandboxSpec(image=image, user="0:0"))
        await box.guest.ping(timeout_s=10)
        # root's own `rm -rf /bin`, as far as an image has it
        await box.sh("rm -rf /usr/bin /bin", timeout_s=20)
        with pytest.raises((SandboxUnavailable, GuestLost, DeadlineExceeded)):
            await box.guest.ping(timeout_s=10)

    on_docker(scenario)


def test_many_connections_at_once_are_no_trouble(on_docker: OnDocker) -> None:
    """aiohttp's own limit is 100; each sandbox holds a connection."""

    async def scenario(rig: Rig) -> None:
        box = await rig.start()
        guests = [await rig.driver.connect(box.name, box.spec) for _ in range(25)]
        answers = await asyncio.gather(*(guest.exec(ExecRequest("echo ok")) for guest in guests for _ in range(5)))
        assert {answer.stdout for answer in answers} == {b"ok\n"}
        assert rig.driver._engine._docker is not None
        assert rig.driver._engine._docker.connector.limit == 0
        await asyncio.gather(*(guest.close() for guest in guests))

    on_docker(scenario)
