"""Sandboxes for code that is not asynchronous."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollcage.errors import RollcageError
from rollcage.sandbox.base import Sandbox, Sandboxes, Session
from rollcage.sandbox.errors import ImageMissing, SandboxError, SandboxUnavailable
from rollcage.sandbox.sync import SyncSandbox, SyncSandboxes, SyncSession
from rollcage.sandbox.types import ExecResult, Output, SandboxSpec, State

SPEC = SandboxSpec()


def own_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("rollcage")}


@pytest.fixture
def sandboxes(tmp_path: Path) -> Iterator[SyncSandboxes]:
    before = own_threads()
    with SyncSandboxes(folder=tmp_path / "state", endpoints=("process:",)) as opened:
        yield opened
        for info in opened.list_sandboxes():
            opened.attach(info.id).delete()
    assert own_threads() <= before


def test_every_call_returns_when_it_is_done(sandboxes: SyncSandboxes, tmp_path: Path) -> None:
    box = sandboxes.create(SPEC, key="mine", owner="me")
    assert sandboxes.create(SPEC, key="mine").id == box.id
    assert box.exec("echo hello").stdout_text == "hello\n"
    home = box.exec("pwd").stdout_text.strip()
    items = list(box.stream("echo streamed"))
    assert items[:-1] == [Output("stdout", b"streamed\n")]
    assert isinstance(items[-1], ExecResult)
    with box.session() as session:
        session.run("X=5")
        assert session.run("echo $X").stdout == b"5\n"
    box.put(b"data", f"{home}/file")
    assert box.read(f"{home}/file") == b"data"
    box.get(f"{home}/file", tmp_path / "file")
    snapshot = box.snapshot()
    assert sandboxes.snapshots() == [snapshot]
    fork = box.fork(snapshot_id=snapshot.id)
    assert fork.exec("cat file").stdout == b"data"
    box.restore()
    assert box.info().generation == 2
    box.renew(500.0)
    box.pause()
    assert box.info().state is State.STOPPED
    box.resume()
    assert box.logs() == ""
    [host] = sandboxes.hosts()
    sandboxes.drain(host.name)
    sandboxes.drain(host.name, on=False)
    assert len(box.events()) < len(sandboxes.events())
    assert sandboxes.reap() == []
    box.delete()
    with pytest.raises(SandboxUnavailable):
        box.exec("true")


@pytest.mark.parametrize(
    ("ours", "asynchronous"), [(SyncSandboxes, Sandboxes), (SyncSandbox, Sandbox), (SyncSession, Session)]
)
def test_it_has_every_call_with_the_same_arguments_and_is_documented(ours: type, asynchronous: type) -> None:
    calls = {name: call for name, call in vars(asynchronous).items() if inspect.isfunction(call) and name[0] != "_"}
    archives = {"put_archive", "get_archive"}  # asynchronous streams go in and out of these
    assert {name for name in calls if not hasattr(ours, name)} == archives & calls.keys()
    for name in calls.keys() - archives:
        call = getattr(ours, name)
        assert inspect.signature(call).parameters == inspect.signature(calls[name]).parameters
        assert call.__doc__


def test_errors_are_the_managers(sandboxes: SyncSandboxes) -> None:
    with pytest.raises(ImageMissing):
        sandboxes.create(SandboxSpec(image="no-such-image"))


def test_it_works_where_the_callers_own_thread_runs_a_loop(sandboxes: SyncSandboxes) -> None:
    async def main() -> bytes:
        return sandboxes.create(SPEC).exec("echo inside").stdout

    assert asyncio.run(main()) == b"inside\n"


def test_threads_may_call_side_by_side(sandboxes: SyncSandboxes) -> None:
    box = sandboxes.create(SPEC)
    begin_s = time.monotonic()
    with ThreadPoolExecutor(10) as pool:
        results = list(pool.map(lambda number: box.exec(f"sleep 0.5; echo {number}").stdout, range(10)))
    assert results == [b"%d\n" % number for number in range(10)]
    assert time.monotonic() - begin_s < 4.0


def test_leaving_a_stream_kills_the_command(sandboxes: SyncSandboxes) -> None:
    box = sandboxes.create(SPEC)
    for item in box.stream("echo started; while :; do echo x >> ticks; sleep 0.05; done"):
        assert item == Output("stdout", b"started\n")
        break
    deadline = time.monotonic() + 10.0
    counts = [b"", b"0"]
    while counts[-1] != counts[-2]:
        assert time.monotonic() < deadline
        time.sleep(0.3)
        counts.append(box.exec("wc -c ticks 2>/dev/null || true").stdout)


def test_close_cancels_what_runs_and_can_be_called_again(tmp_path: Path) -> None:
    opened = SyncSandboxes(folder=tmp_path, endpoints=("process:",))
    box = opened.create(SandboxSpec(ttl_s=1.0))
    ends: list[BaseException] = []

    def call() -> None:
        try:
            box.exec("sleep 60")
        except SandboxError as error:
            ends.append(error)

    calling = threading.Thread(target=call)
    calling.start()
    time.sleep(0.5)
    opened.close()
    opened.close()
    calling.join(timeout=10.0)
    assert [type(end) for end in ends] == [SandboxUnavailable]
    with pytest.raises(SandboxError, match="closed"):
        box.exec("true")
    with SyncSandboxes(folder=tmp_path, endpoints=("process:",)) as again:
        time.sleep(1.1)
        again.reap()
        assert again.list_sandboxes() == []


def test_a_failed_start_leaves_no_thread(tmp_path: Path) -> None:
    async def fail() -> SyncSandboxes:
        raise RollcageError("no")

    before = own_threads()
    with pytest.raises(RollcageError, match="no"):
        SyncSandboxes(fail)  # type: ignore[arg-type]
    assert own_threads() <= before


def test_a_fork_does_not_use_the_parents_sandboxes(sandboxes: SyncSandboxes) -> None:
    box = sandboxes.create(SPEC)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            sandboxes.close()
            box.exec("true")
        except SandboxError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    assert b"fork" in os.read(reading, 1000)
    os.close(reading)
    os.waitpid(child, 0)
    assert box.exec("echo parent").stdout == b"parent\n"


def test_an_interrupt_cancels_the_call_and_only_that(sandboxes: SyncSandboxes) -> None:
    box = sandboxes.create(SPEC)
    timer = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        box.exec("touch begun; sleep 60; touch ended")
    timer.join()
    assert time.monotonic() - begin_s < 10.0
    assert box.exec("ls").stdout == b"begun\n"
    processes = subprocess.run(["pgrep", "-fc", "sleep 60; touch ended"], capture_output=True, text=True)
    assert processes.stdout.strip() == "0"


def test_who_forgets_to_close_can_still_leave(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom rollcage.sandbox.sync import SyncSandboxes\nfrom rollcage.sandbox.types import SandboxSpec\n"
        "box = SyncSandboxes(folder=sys.argv[1], endpoints=('process:',)).create(SandboxSpec(ttl_s=5.0))\n"
        "print(box.exec('echo hello').stdout_text)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n\n", "")
    with SyncSandboxes(folder=tmp_path, endpoints=("process:",)) as again:
        [info] = again.list_sandboxes()
        again.attach(info.id).delete()
