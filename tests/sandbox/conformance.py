"""What every `Sandboxes` does, in process or over HTTP: one function a promise, each with a fresh manager."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rollcage.errors import UserError
from rollcage.sandbox.base import Sandbox, Sandboxes
from rollcage.sandbox.errors import (
    ImageMissing,
    NoSuchPath,
    SandboxNotFound,
    SandboxRestarted,
    SandboxUnavailable,
    UnsafePath,
)
from rollcage.sandbox.types import MIB, ExecResult, Output, SandboxSpec, State

Promise = Callable[[Sandboxes, Path], Awaitable[None]]
PROMISES: list[Promise] = []
SPEC = SandboxSpec()


def promise(function: Promise) -> Promise:
    """Add a promise to the suite."""
    PROMISES.append(function)
    return function


async def wait_until(holds: Callable[[], Awaitable[bool]], timeout_s: float = 10.0) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(timeout_s):
        while not await holds():
            await asyncio.sleep(0.05)


async def still_writes(sandbox: Sandbox) -> bool:
    """Whether `TICKER` runs."""
    count = "wc -c < ticks"
    before = (await sandbox.exec(count)).stdout
    await asyncio.sleep(0.3)
    return (await sandbox.exec(count)).stdout != before


async def home_of(sandbox: Sandbox) -> str:
    """Return the folder in which commands start."""
    return (await sandbox.exec("pwd")).stdout_text.strip()


TICKER = "while :; do echo x >> ticks; sleep 0.05; done"


@promise
async def a_command_gives_its_exact_result(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)
    result = await box.exec("printf '\\377ok'; echo error >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr, result.generation) == (3, b"\xffok", b"error\n", 1)
    assert result.num_stdout_bytes == 3
    assert not result.ok
    given = await box.exec(["sh", "-c", 'cat; echo "$A $PWD"'], env={"A": "1 2"}, cwd="/tmp", stdin=b"\x00\xfe")
    assert given.stdout == b"\x00\xfe1 2 /tmp\n"
    killed = await box.exec("kill -9 $$")
    assert (killed.exit_code, killed.signal) == (None, 9)


@promise
async def a_deadline_keeps_the_output_until_then(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)
    result = await box.exec("echo A; sleep 30", timeout_s=0.5)
    assert (result.timed_out, result.stdout) == (True, b"A\n")
    assert (await box.exec("echo ok")).stdout == b"ok\n"


@promise
async def long_output_is_cut_in_the_middle_and_counted(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)
    result = await box.exec("echo head; head -c 300000 /dev/zero; echo tail", max_output_bytes=1000)
    assert result.truncated
    assert result.num_stdout_bytes == 300010
    assert len(result.stdout) <= 1000
    assert result.stdout.startswith(b"head")
    assert result.stdout.endswith(b"tail\n")


@promise
async def a_stream_yields_pieces_and_then_the_result(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)
    seen: dict[str, bytes] = {"stdout": b"", "stderr": b""}
    results = []
    async for item in box.stream("echo one; sleep 0.3; echo two; printf '\\303' >&2; sleep 0.3; printf '\\251' >&2"):
        if isinstance(item, Output):
            assert not results
            seen[item.source] += item.data
            if seen["stdout"] == b"one\n":
                assert seen["stderr"] == b"", "it comes while the command runs"
        else:
            results.append(item)
    assert seen == {"stdout": b"one\ntwo\n", "stderr": b"\xc3\xa9"}
    assert [result.exit_code for result in results] == [0]


@promise
async def leaving_a_stream_kills_the_command(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)
    items = box.stream(f"echo started; {TICKER}")
    assert await anext(items) == Output("stdout", b"started\n")
    await items.aclose()  # type: ignore[attr-defined]

    async def has_stopped() -> bool:
        return not await still_writes(box)

    await wait_until(has_stopped)


@promise
async def one_can_talk_to_a_command(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)
    said: asyncio.Queue[bytes] = asyncio.Queue()

    async def stdin() -> AsyncIterator[bytes]:
        while data := await said.get():
            yield data

    heard = b""
    results = []
    said.put_nowait(b"one\n")
    async for item in box.stream("while read line; do echo you said $line; done; echo bye; exit 3", stdin=stdin()):
        if isinstance(item, ExecResult):
            results.append(item.exit_code)
            continue
        heard += item.data
        if heard.endswith(b"you said one\n"):
            said.put_nowait(b"two \xff\n")  # only now: it answers while its input is open
        elif b"two" in heard:
            said.put_nowait(b"")
    assert (heard, results) == (b"you said one\nyou said two \xff\nbye\n", [3])


@promise
async def input_is_asked_for_no_faster_than_a_command_reads_it(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)
    num_taken = 0

    async def much() -> AsyncIterator[bytes]:
        nonlocal num_taken
        for _ in range(512):
            num_taken += 1
            yield bytes(1 << 16)

    command = "until test -e go; do sleep 0.05; done; wc -c"
    running = asyncio.ensure_future(_last(box.stream(command, stdin=much())))
    await asyncio.sleep(1.0)
    assert num_taken < 256, "most of it waits where it comes from"
    await box.exec("touch go")
    result = await running
    assert result.stdout.strip() == b"%d" % (512 << 16)
    assert (await _last(box.stream("head -c 3", stdin=much()))).stdout == bytes(3), "a command may leave some of it"


@promise
async def input_that_fails_kills_its_command_and_is_told(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)

    async def failing() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(0.3)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await _last(box.stream(f"{TICKER}", stdin=failing()))

    async def has_stopped() -> bool:
        return not await still_writes(box)

    await wait_until(has_stopped)


async def _last(items: AsyncIterator[Output | ExecResult]) -> ExecResult:
    [*_, result] = [item async for item in items]
    assert isinstance(result, ExecResult)
    return result


@promise
async def cancelling_a_command_kills_it(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)
    running = asyncio.create_task(box.exec(TICKER))

    async def has_begun() -> bool:
        return (await box.exec("test -s ticks")).ok

    await wait_until(has_begun)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    async def has_stopped() -> bool:
        return not await still_writes(box)

    await wait_until(has_stopped)


@promise
async def a_session_remembers(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)
    session = await box.session(env={"GREETING": "hello"}, cwd="/tmp")
    assert (await session.run("X=7; cd /; echo $GREETING")).stdout == b"hello\n"
    result = await session.run("echo $X; pwd; false")
    assert (result.stdout, result.exit_code) == (b"7\n/\n", 1)
    assert (await session.run("echo $X; sleep 30", timeout_s=0.5)).timed_out
    await session.close()
    await session.close()


@promise
async def files_go_in_and_come_out(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)
    source = folder / "source"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "é.bin").write_bytes(bytes(range(256)) * 5000)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("inner/é.bin")
    home = await home_of(box)
    await box.put(source, f"{home}/missing/folders/copy")
    assert (await box.exec("missing/folders/copy/run.sh")).stdout == b"ran\n"
    await box.get(f"{home}/missing/folders/copy", folder / "back")
    assert (folder / "back" / "link").read_bytes() == (source / "inner" / "é.bin").read_bytes()
    assert (folder / "back" / "link").is_symlink()
    assert (folder / "back" / "run.sh").stat().st_mode & 0o111
    await box.put(b"data\x00", f"{home}/file")
    await box.get(f"{home}/file", folder / "file")
    assert (folder / "file").read_bytes() == await box.read(f"{home}/file") == b"data\x00"
    with pytest.raises(FileExistsError):
        await box.get(f"{home}/file", folder / "file")


@promise
async def unsafe_and_missing_files_are_told_and_leave_nothing(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)
    home, bad = await home_of(box), folder / "bad"
    bad.mkdir()
    (bad / "out").symlink_to("/etc/passwd")
    with pytest.raises(UnsafePath):
        await box.put(bad, f"{home}/bad")
    with pytest.raises(NoSuchPath):
        await box.put(folder / "nothing", f"{home}/nothing")
    with pytest.raises(NoSuchPath):
        await box.get(f"{home}/nothing", folder / "nothing")
    with pytest.raises(NoSuchPath):
        await box.read(f"{home}/nothing")
    await box.exec("mkdir evil; ln -s /etc evil/out; head -c 100 /dev/zero > big")
    with pytest.raises(UnsafePath):
        await box.get(f"{home}/evil", folder / "evil")
    with pytest.raises(UnsafePath):
        await box.read(f"{home}/big", max_bytes=99)
    assert len(await box.read(f"{home}/big", max_bytes=100)) == 100
    assert [path.name for path in folder.iterdir() if "evil" in path.name or "nothing" in path.name] == []


@promise
async def one_key_is_one_sandbox(sandboxes: Sandboxes, folder: Path) -> None:
    boxes = await asyncio.gather(*(sandboxes.create(SPEC, key="mine", owner="me") for _ in range(5)))
    assert len({box.id for box in boxes}) == 1
    other = await sandboxes.create(SPEC, key="other", owner="you")
    assert [info.id for info in await sandboxes.list_sandboxes()] == [boxes[0].id, other.id]
    assert [info.id for info in await sandboxes.list_sandboxes(owner="you")] == [other.id]
    attached = await sandboxes.attach(other.id)
    info = await attached.info()
    assert (info.key, info.owner, info.state, info.spec) == ("other", "you", State.READY, SPEC)
    with pytest.raises(SandboxNotFound):
        await sandboxes.attach("nobody")
    with pytest.raises(SandboxNotFound):
        await sandboxes.attach("")


@promise
async def a_lease_is_renewed(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SandboxSpec(ttl_s=100.0))
    before = (await box.info()).expires_at
    await box.renew(1000.0)
    assert 850 < (await box.info()).expires_at - before < 950
    await box.renew()
    assert abs((await box.info()).expires_at - before) < 50


@promise
async def a_snapshot_is_restored_and_forked(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)
    other_hand = await sandboxes.attach(box.id)
    await box.exec("echo saved > kept")
    snapshot = await box.snapshot()
    assert [kept.id for kept in await sandboxes.snapshots()] == [snapshot.id]
    await box.exec("echo lost > kept")
    session = await other_hand.session()
    await box.restore(snapshot.id)
    result = await box.exec("cat kept")
    assert (result.stdout, result.generation) == (b"saved\n", 2)
    with pytest.raises(SandboxRestarted) as told:
        await other_hand.exec("cat kept")
    assert told.value.generation == 2
    assert (await other_hand.exec("cat kept")).stdout == b"saved\n", "it is told once"
    with pytest.raises(SandboxRestarted):
        await session.run("true")
    fork = await box.fork(snapshot_id=snapshot.id)
    assert fork.id != box.id
    await fork.exec("echo forked > kept")
    assert (await fork.exec("cat kept")).stdout == b"forked\n"
    assert (await box.exec("cat kept")).stdout == b"saved\n"


@promise
async def a_paused_sandbox_waits(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)
    await box.pause()
    await box.pause()
    assert (await box.info()).state is State.STOPPED
    with pytest.raises(SandboxUnavailable) as told:
        await box.exec("true")
    assert told.value.state == "STOPPED"
    await box.resume()
    await box.resume()
    assert (await box.exec("echo back")).stdout == b"back\n"


@promise
async def a_deleted_sandbox_leaves_its_history(sandboxes: Sandboxes, folder: Path) -> None:
    box = await sandboxes.create(SPEC)
    session = await box.session()
    await box.delete()
    await box.delete()
    with pytest.raises(SandboxUnavailable) as told:
        await box.exec("true")
    assert told.value.state == "DELETED"
    assert (await box.info()).state is State.DELETED
    await session.close()
    with pytest.raises(SandboxNotFound):
        await sandboxes.attach(box.id)
    events = await box.events()
    assert [event.sandbox_id for event in events] == [box.id] * len(events)
    assert {"created", "ready", "deleted"} <= {event.kind for event in events}
    assert await box.events(after=events[-2].number) == events[-1:]
    assert await sandboxes.list_sandboxes() == []


@promise
async def the_main_process_is_heard(sandboxes: Sandboxes, folder: Path) -> None:
    spec = SandboxSpec(command=("sh", "-c", "echo one; echo two; exec sleep 60"), ready_command="true")
    box = await sandboxes.create(spec)

    async def has_written() -> bool:
        return "two" in await box.logs()

    await wait_until(has_written)
    assert (await box.logs(num_lines=1)).strip() == "two"


@promise
async def what_cannot_be_is_told_at_once(sandboxes: Sandboxes, folder: Path) -> None:
    async with asyncio.timeout(20.0):
        with pytest.raises(ImageMissing) as told:
            await sandboxes.create(SandboxSpec(image="rollcage-no-such-image"))
    assert "\n" not in str(told.value)
    with pytest.raises(UserError):
        await sandboxes.drain("nowhere")


@promise
async def a_host_is_drained(sandboxes: Sandboxes, folder: Path) -> None:
    [host] = await sandboxes.hosts()
    assert host.condition == "open"
    await sandboxes.drain(host.name)
    [host] = await sandboxes.hosts()
    assert host.condition == "drained"
    await sandboxes.drain(host.name, on=False)
    assert (await (await sandboxes.create(SPEC)).exec("true")).ok
    assert await sandboxes.reap() == []


@promise
async def many_work_side_by_side(sandboxes: Sandboxes, folder: Path) -> None:
    boxes = await asyncio.gather(*(sandboxes.create(SPEC) for _ in range(3)))

    async def use(number: int) -> ExecResult:
        return await boxes[number % 3].exec(f"sleep 0.2; echo {number}", max_output_bytes=MIB)

    results = await asyncio.gather(*(use(number) for number in range(30)))
    assert [int(result.stdout) for result in results] == list(range(30))
