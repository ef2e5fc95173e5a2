"""The connection to the agent: its start, its end, frames of every bad kind, and what an idle agent costs."""

from __future__ import annotations

import ast
import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest
from tests.sandbox.guest.local_guest import find_processes, local_guest, run, wait_until, with_guest

from rollcage.sandbox.drivers.process_agent import AgentPipe
from rollcage.sandbox.errors import DeadlineExceeded, GuestLost, SandboxUnavailable
from rollcage.sandbox.guest import agent
from rollcage.sandbox.guest.agent import frames, job, processes, requests, shell
from rollcage.sandbox.guest.channel import AgentGuest, open_agent
from rollcage.sandbox.guest.program import PROGRAM, agent_command
from rollcage.sandbox.types import ExecRequest

SIGNAL = processes.send_signal


async def start(folder: Path, *command: str) -> AgentPipe:
    """Start a program in the agent's place."""
    return await AgentPipe.start(command, dict(os.environ), folder, folder / "log", set())


class ScriptedPipe:
    """A `Duplex` in memory: a test is the agent.

    Attributes:
        sent: what the host wrote after the source.
    """

    def __init__(self, answer: Callable[[ScriptedPipe, dict[str, object]], None] = lambda pipe, message: None) -> None:
        self.sent: list[dict[str, object]] = []
        self.is_closed = False
        self._answer = answer
        self._incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self._frames: frames.FrameReader | None = None

    def feed(self, data: bytes) -> None:
        """Have the host read this."""
        self._incoming.put_nowait(data)

    def say(self, payload: bytes = b"", **header: object) -> None:
        """Have the host read a frame."""
        self.feed(frames.pack_frame(header, payload))

    async def read(self, num_bytes: int) -> bytes:
        return await self._incoming.get()

    async def write(self, data: bytes) -> None:
        if self._frames is None:
            self._frames = frames.FrameReader()
            self.feed(frames.MAGIC + frames.pack_frame({"op": "hello"}))
            return
        for message, _ in self._frames.feed(data):
            self.sent.append(message)
            if message["op"] == "shutdown":
                self.feed(b"")
            else:
                self._answer(self, message)

    async def close(self) -> None:
        self.is_closed = True


def with_script(
    answer: Callable[[ScriptedPipe, dict[str, object]], None],
    test: Callable[[AgentGuest, ScriptedPipe], Awaitable[None]],
) -> None:
    """Run a test against an agent that answers as scripted."""

    async def main() -> None:
        pipe = ScriptedPipe(answer)
        guest = await open_agent(pipe)
        await test(guest, pipe)
        await guest.close()
        assert pipe.is_closed

    asyncio.run(main())


def test_the_agent_needs_python_3_7_and_its_standard_library_alone() -> None:
    for file in Path(agent.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text(), feature_version=(3, 7))
        imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
        names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in imports if isinstance(node, ast.ImportFrom) and node.module}
        others = {name for name in names if not name.startswith(agent.__name__)}
        assert {name.split(".")[0] for name in others} <= sys.stdlib_module_names


def test_noise_before_the_agent_is_skipped(tmp_path: Path) -> None:
    async def main() -> None:
        python, *options, start_ = agent_command(sys.executable)
        noisy = "import sys; sys.stdout.write('welcome!\\n\\0' * 100); sys.stdout.flush();" + start_
        guest = await open_agent(await start(tmp_path, python, *options, noisy))
        assert (await run(guest, "echo ok")).stdout == b"ok\n"
        await guest.close()

    asyncio.run(main())


def test_a_python_of_another_version_takes_the_source(tmp_path: Path) -> None:
    """Rehearsed with a version number that is nobody's: the compiled agent must not be touched then."""

    async def main() -> None:
        python, *options, start_ = agent_command(sys.executable)
        assert repr(MAGIC_NUMBER) in start_
        pipe = await start(tmp_path, python, *options, start_.replace(repr(MAGIC_NUMBER), "b'none'"))
        write, pipe.write = pipe.write, lambda data: write(b"x" * 1000 + data[1000:])  # type: ignore[method-assign,assignment]
        guest = await open_agent(pipe)
        pipe.write = write  # type: ignore[method-assign]
        assert (await run(guest, "echo ok")).stdout == b"ok\n"
        await guest.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("command", "error", "words"),
    [
        (("sh", "-c", "echo no python here; exit 127"), GuestLost, "no python here"),
        (("sh", "-c", "exec yes garbage"), GuestLost, "garbage"),
        (("true",), GuestLost, "nothing"),
        (("sh", "-c", "echo wait; exec sleep 60"), DeadlineExceeded, "wait"),
        (("sh", "-c", "printf '\\0rollcage-agent-1\\nXXXXXXXXXXXX'; cat"), GuestLost, "lengths"),
        (("sh", "-c", "printf '\\0rollcage-agent-1\\n'"), GuestLost, "ended"),
    ],
)
def test_what_is_no_agent_is_an_error_that_shows_what_it_wrote(
    tmp_path: Path, command: tuple[str, ...], error: type[Exception], words: str
) -> None:
    async def main() -> None:
        pipe = await start(tmp_path, *command)
        with pytest.raises(error, match=words):
            await open_agent(pipe, timeout_s=0.5)
        assert pipe.process.returncode is not None, "the process is gone"

    asyncio.run(main())


def test_a_program_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(SandboxUnavailable, match="nope"):
            await start(tmp_path, "/nope")

    asyncio.run(main())


def test_when_the_agent_is_killed_all_calls_are_told(tmp_path: Path) -> None:
    async def main() -> None:
        guest = await open_agent(await start(tmp_path, *agent_command(sys.executable)))
        session = await guest.open_session(env={}, cwd="")
        pid = int((await run(guest, "echo $PPID")).stdout)
        tasks = [
            asyncio.create_task(run(guest, "sleep 3.21")),
            asyncio.create_task(session.run("sleep 3.21")),
        ]
        await wait_until(lambda: len(find_processes("3.21")) == 2)
        os.kill(pid, signal.SIGKILL)
        for task in tasks:
            with pytest.raises(GuestLost):
                await asyncio.wait_for(task, 2)
        with pytest.raises(GuestLost):
            await run(guest, "true")
        with pytest.raises(GuestLost):
            await guest.ping(timeout_s=1)
        await session.close()
        await guest.close()
        await guest.close()

    asyncio.run(main())


def test_an_agent_that_is_frozen_costs_its_calls_their_deadline_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollcage.sandbox.guest.channel.GRACE_S", 0.2)
    taken: list[int] = []

    async def main() -> None:
        async with local_guest(tmp_path) as guest:
            pid = int((await run(guest, "echo $PPID")).stdout)
            os.kill(pid, signal.SIGSTOP)
            started = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                await guest.ping(timeout_s=0.3)
            with pytest.raises(DeadlineExceeded):
                await guest.put(forever(), "x", timeout_s=0.3)
            assert time.monotonic() - started < 2
            assert len(taken) < 20, "a window full, and no more, is read for an agent that does not take it"
            os.kill(pid, signal.SIGCONT)
            assert (await run(guest, "echo ok")).stdout == b"ok\n"

    async def forever():  # type: ignore[no-untyped-def]
        while True:
            taken.append(1)
            await asyncio.sleep(0)
            yield bytes(100_000)

    asyncio.run(main())


def test_closing_ends_calls_in_flight_and_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        guest = await open_agent(await start(tmp_path, *agent_command(sys.executable)))
        call = asyncio.create_task(run(guest, "sleep 600.22"))
        await wait_until(lambda: len(find_processes("600.22")) == 1)
        await asyncio.gather(guest.close(), guest.close())
        with pytest.raises(GuestLost):
            await call
        assert find_processes("600.22") == []
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(main())


def test_a_probe_fails_where_no_process_can_be_started(tmp_path: Path) -> None:
    """Rehearsed with an agent whose shell is gone: /bin of this machine must stay."""

    async def main() -> None:
        program = PROGRAM.replace(b"/bin/sh", b"/nix/sh")
        command = list(agent_command(sys.executable))
        pipe = await start(tmp_path, *command)
        write, pipe.write = pipe.write, lambda data: write(program)  # type: ignore[method-assign,assignment]
        guest = await open_agent(pipe)
        pipe.write = write  # type: ignore[method-assign]
        with pytest.raises(SandboxUnavailable, match="no process can be started"):
            await guest.ping(timeout_s=5)
        await guest.close()

    asyncio.run(main())


def test_a_command_that_has_ended_kills_no_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process of its own (pid 0) nothing is its: the kernel's first processes are of "session 0" too."""
    killed: list[int] = []
    table = {**processes.list_processes(), 1: (0, 0, 1), 2: (0, 0, 1), 99999999: (1, 0, 1)}
    for module in (job, shell):
        monkeypatch.setattr(module, "send_signal", lambda send, pid, number: killed.append(pid))
        monkeypatch.setattr(module, "list_processes", lambda: table)
    loop = requests.Agent(0, 1)
    session = shell.Shell(loop, b"none.1", {}, None)
    command = job.Job(loop, job.Task(loop, {"id": 1}), b"none.2")
    assert command.alone
    assert session.kill_once(everything=True) == session.kill_once() == 0
    command.status = 0
    assert command.kill_once() == 0
    assert killed == []
    for pid in (-1, 0, 1):
        with pytest.raises(ValueError, match="strangers"):
            SIGNAL(lambda *_: killed.append(0), pid, 9)
    assert killed == []
    loop.selector.close()


@pytest.mark.parametrize("asked", [{"op": "get", "path": "."}, {"op": "put", "folder": "."}])
def test_files_of_a_sandbox_that_can_have_no_more_processes_are_unavailable(
    asked: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")  # at the limit of processes

    monkeypatch.setattr(os, "fork", fork)
    loop = requests.Agent(0, 1)
    loop._on_frame({"id": 1, **asked}, b"")
    ((answer, _),) = frames.FrameReader().feed(bytes(loop._to_send))
    loop.selector.close()
    assert (answer["op"], answer["kind"]) == ("error", "SandboxUnavailable")
    assert "no process can be started" in answer["message"]


def test_frames_are_cut_wherever_the_pipe_cuts_them() -> None:
    sent = [({"op": "x", "n": n, "text": "ü" * n}, bytes([n]) * n * 37) for n in range(40)]
    data = b"".join(frames.pack_frame(*frame) for frame in sent)
    chance = random.Random(1)
    for _ in range(30):
        reader, found, at = frames.FrameReader(), [], 0
        while at < len(data):
            size = chance.choice((1, 7, 100, 5000))
            found += reader.feed(data[at : at + size])
            at += size
        assert found == sent


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\xff" * 64,
        b"\0\0\0\2\0\0\0\0[]",
        b"\0\0\0\2\0\0\0\0{]",
        b"\0\0\0\1\0\0\0\0\xff",
        b"\0\0\0\0\xff\xff\xff\xff",
        b"\0\1\0\0\0\0\0\0" + b"[" * (1 << 16),
        frames.pack_frame({"op": "x", "id": 9, "text": "costly to read" * 10_000}),
        frames.pack_frame({"op": "evil", "id": 1}),
        frames.pack_frame({"op": "done", "id": 1}),
        frames.pack_frame({"op": "output", "id": 1, "source": 3}),
        frames.pack_frame({"op": "hello", "id": [1]}),
        frames.pack_frame({"op": None, "id": {}}),
    ],
)
def test_nonsense_from_the_agent_ends_the_connection(nonsense: bytes) -> None:
    async def test(guest: AgentGuest, pipe: ScriptedPipe) -> None:
        with pytest.raises(GuestLost, match="broke"):
            await asyncio.wait_for(run(guest, "true"), 5)
        with pytest.raises(GuestLost):
            await run(guest, "true")

    with_script(lambda pipe, message: pipe.feed(nonsense), test)


@pytest.mark.parametrize("op", ["output", "kept"])
def test_an_agent_that_sends_without_end_is_cut_off(op: str) -> None:
    """Whoever took over the agent must not fill the manager's memory."""

    def flood(pipe: ScriptedPipe, message: dict[str, object]) -> None:
        if message["op"] == "exec":
            for _ in range(100):
                pipe.say(bytes(1 << 20), op=op, id=message["id"], source="stdout")

    async def test(guest: AgentGuest, pipe: ScriptedPipe) -> None:
        with pytest.raises(GuestLost, match="more output than was asked for"):
            await guest.exec(ExecRequest("true"))

    with_script(flood, test)


def test_a_flood_of_messages_for_nobody_lets_others_have_their_turn() -> None:
    piece = frames.pack_frame({"op": "x", "id": 99}) * 10

    async def main() -> None:
        class Flood(ScriptedPipe):
            async def read(self, num_bytes: int) -> bytes:
                return piece if self._incoming.empty() else await self._incoming.get()

        pipe = Flood()
        pipe.feed(frames.MAGIC)
        pipe.say(op="hello")
        guest = await open_agent(pipe)
        for _ in range(100):
            await asyncio.wait_for(asyncio.sleep(0.001), 5)
        await guest.close()

    asyncio.run(asyncio.wait_for(main(), 20))


def test_an_error_of_any_length_comes_through(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        with pytest.raises(SandboxUnavailable, match="no shell can be started") as told:
            await guest.open_session(env={}, cwd="\N{GRINNING FACE}" * 100_000)
        assert len(str(told.value)) == frames.MAX_ERROR_CHARS
        assert (await run(guest, "echo on")).stdout == b"on\n"

    with_guest(tmp_path, test)


def test_messages_for_calls_that_are_over_are_dropped() -> None:
    def late(pipe: ScriptedPipe, message: dict[str, object]) -> None:
        if message["op"] == "cancel":
            pipe.say(op="done", id=message["id"])
        elif message["op"] == "ping" and len(pipe.sent) > 2:
            pipe.say(op="vitals", id=message["id"], num_oom_kills=1, memory_bytes=2, num_pids=3, cpu_s=4)

    async def test(guest: AgentGuest, pipe: ScriptedPipe) -> None:
        with pytest.raises(DeadlineExceeded):
            await guest.ping(timeout_s=0.05)
        await asyncio.sleep(0.05)
        assert [message["op"] for message in pipe.sent] == ["ping", "cancel"]
        vitals = await guest.ping(timeout_s=5)
        assert (vitals.num_oom_kills, vitals.memory_bytes, vitals.num_pids, vitals.cpu_s) == (1, 2, 3, 4)

    with_script(late, test)


def test_the_agent_outlives_bad_requests_but_no_bad_frames(tmp_path: Path) -> None:
    """Fuzz: 300 requests of wrong shapes are answered; bytes that are no frames end it."""
    chance = random.Random(7)
    values = [None, -1, 0, 1e300, "x", "", [], {}, [1], {"a": 1}, True, "\0", "ü\ud800", [[["x"]]]]
    fields = [
        "id",
        "command",
        "env",
        "cwd",
        "timeout_s",
        "max_output_bytes",
        "session",
        "folder",
        "path",
        "n",
        "stdin_bytes",
    ]
    ops = [
        "exec",
        "data",
        "credit",
        "cancel",
        "session",
        "run",
        "close_session",
        "ping",
        "x",
        "_on_stdin",
        "shut",
        None,
    ]

    async def main() -> None:
        pipe = await start(tmp_path, *agent_command(sys.executable))
        await pipe.write(PROGRAM)
        assert (await pipe.read(1 << 16)).startswith(frames.MAGIC)
        for number in range(300):
            header = {name: chance.choice(values) for name in chance.sample(fields, chance.randrange(len(fields)))}
            header["id"] = chance.choice([1000 + number, *values])
            header["command"] = chance.choice(["true", ["true"], *values])
            payload = chance.randbytes(chance.randrange(50))
            await pipe.write(frames.pack_frame({"op": chance.choice(ops), **header}, payload))
        await pipe.write(frames.pack_frame({"op": "exec", "id": 5000, "command": "echo still there"}))
        seen = b""
        while b"still there" not in seen:
            data = await asyncio.wait_for(pipe.read(1 << 16), 10)
            assert data, (tmp_path / "log").read_text()
            seen += data
        await pipe.close()
        assert (tmp_path / "log").read_text() == ""

    asyncio.run(main())

    process = subprocess.Popen(agent_command(sys.executable), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=-1)
    stdout, stderr = process.communicate(PROGRAM + b"\xff" * 100, timeout=10)
    assert stdout.startswith(frames.MAGIC)
    assert b"nonsense" in stderr
    assert process.returncode == 0


def test_an_idle_agent_costs_no_cpu_and_little_memory(tmp_path: Path) -> None:
    """Memory is the proportional set size: what is shared with other interpreters counts by its share."""

    async def test(guest: AgentGuest) -> None:
        pid = (await run(guest, "echo $PPID")).stdout_text.strip()
        usage = Path(f"/proc/{pid}/stat")
        before = usage.read_text().split()[13:15]
        await asyncio.sleep(2.0)
        assert usage.read_text().split()[13:15] == before
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        kib = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
        assert kib["Pss:"] < 12 * 1024
        assert kib["Pss_Anon:"] < 8 * 1024

    with_guest(tmp_path, test)


def test_commands_are_fast(tmp_path: Path) -> None:
    """A loose bound for busy machines; benchmarks/sandbox measures."""

    async def test(guest: AgentGuest) -> None:
        session = await guest.open_session(env={}, cwd="")
        times: dict[str, list[float]] = {"exec": [], "session": []}
        for _ in range(100):
            started = time.monotonic()
            await run(guest, "true")
            times["exec"].append(time.monotonic() - started)
            started = time.monotonic()
            await session.run("true")
            times["session"].append(time.monotonic() - started)
        for kind in times.values():
            assert sorted(kind)[50] < 0.02

    with_guest(tmp_path, test)
