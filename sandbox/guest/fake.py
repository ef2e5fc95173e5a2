"""The inside of an in-memory container: what it does, the few commands that it understands, and its files."""

from __future__ import annotations

import asyncio
import io
import posixpath
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from rollcage.sandbox.drivers.base import Container, Observed
from rollcage.sandbox.errors import DeadlineExceeded, GuestLost, NoSuchPath, SandboxUnavailable
from rollcage.sandbox.guest.base import OnOutput
from rollcage.sandbox.types import MIB, ExecRequest, ExecResult, Output, Vitals

T = TypeVar("T")
Commands = Callable[[ExecRequest], ExecResult | None]
"""What a command answers; None: what `FakeContainer.run` makes of it."""
Faulty = Callable[[str, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Gives the answer to a call by name, or lets a fault strike."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a container does.

    Attributes:
        ready_after_s: its ready command fails until so long after its start; inf: for ever.
        dies_after_s: its main process ends so long after its start; inf: never.
        exit_code, oom_killed: how it ends then.
        log: what its main process writes at once.
        agent_hangs: nothing that is asked inside is ever answered.
        fails: its main process cannot be started.
    """

    ready_after_s: float = 0.0
    dies_after_s: float = float("inf")
    exit_code: int = 1
    oom_killed: bool = False
    log: str = ""
    agent_hangs: bool = False
    fails: bool = False


@dataclass(slots=True)
class FakeContainer:
    """A container: its files, and what it is asked."""

    container: Container
    behaviour: Behaviour
    files: dict[str, bytes] = field(default_factory=dict)
    status: str = "created"
    exit_code: int | None = None
    oom_killed: bool = False
    started_at: float = 0.0
    ready_at_s: float = 0.0
    sick: bool = False
    """No process can be started inside any more, as after ``rm -rf /bin``."""
    num_oom_kills: int = 0
    num_written_bytes: int = 0
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    calls: set[asyncio.Timeout] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None

    async def run(self, request: ExecRequest) -> ExecResult:
        """Understand a few commands, joined by ";" or "&&": true, false, exit, echo (also ``> PATH``), cat, sleep."""
        text = request.command if isinstance(request.command, str) else " ".join(request.command)
        out, left_s, code = b"", request.timeout_s, 0
        for line in text.replace("&&", ";").split(";"):
            name, _, rest = line.strip().partition(" ")
            if name == "sleep":
                duration_s = float(rest)
                await asyncio.sleep(min(duration_s, left_s))
                if duration_s >= left_s:
                    return ExecResult(
                        None,
                        signal=9,
                        timed_out=True,
                        stdout=out,
                        num_stdout_bytes=len(out),
                        duration_s=request.timeout_s,
                    )
                left_s -= duration_s
            elif name == "echo" and ">" in rest:
                word, _, path = rest.partition(">")
                self.write(
                    posixpath.join(request.cwd or self.container.spec.workdir, path.strip()), word.strip().encode()
                )
            elif name == "echo":
                out += rest.encode() + b"\n"
            elif name == "cat":
                path = posixpath.join(request.cwd or self.container.spec.workdir, rest)
                code = 0 if path in self.files else 1
                out += self.files.get(path, b"")
            else:
                code = {"true": 0, "": 0, "false": 1}.get(name, int(rest or 0) if name == "exit" else 127)
            if code:
                break
        return ExecResult(code, stdout=out, num_stdout_bytes=len(out), duration_s=request.timeout_s - left_s)

    def write(self, path: str, data: bytes) -> None:
        """Write a file."""
        self.files[path] = data
        self.num_written_bytes += len(data)

    def observed(self) -> Observed:
        """Return it as its host sees it."""
        spec = self.container.spec
        ports = {port: 40000 + port for port in spec.ports} if self.status == "running" else {}
        labels = self.container.labels
        return Observed(
            self.container.name, self.status, labels, self.exit_code, self.oom_killed, self.started_at, ports
        )


class FakeGuest:
    """The inside of a fake container."""

    def __init__(self, inside: FakeContainer, commands: Commands | None, faulty: Faulty) -> None:
        self._inside, self._commands, self._faulty, self._closed = inside, commands, faulty, False

    async def exec(
        self, request: ExecRequest, on_output: OnOutput | None = None, stdin: AsyncIterator[bytes] | None = None
    ) -> ExecResult:
        """See `Guest`; reads all of ``stdin`` before it begins."""
        if stdin is not None:
            request = replace(request, stdin=b"".join([chunk async for chunk in stdin]))
        result = await self._call("exec", lambda: self._run(request))
        for source in ("stdout", "stderr"):
            if on_output is not None and (data := getattr(result, source)):
                await on_output(Output(source, data))
        return result

    async def open_session(self, *, env: dict[str, str], cwd: str) -> FakeSession:
        """See `Guest`."""
        return await self._call("open_session", lambda: _value(FakeSession(self, env, cwd)))

    async def put(self, chunks: AsyncIterator[bytes], folder: str, *, timeout_s: float) -> None:
        """See `Guest`."""
        archive = io.BytesIO(b"".join([chunk async for chunk in chunks]))
        await self._call("put", lambda: _value(None))
        with tarfile.open(fileobj=archive) as tar:
            for member in tar:
                if (file := tar.extractfile(member)) is not None:
                    self._inside.write(posixpath.join(self._absolute(folder), member.name), file.read())

    async def get(self, path: str, *, timeout_s: float) -> AsyncIterator[bytes]:
        """See `Guest`."""
        await self._call("get", lambda: _value(None))
        path = self._absolute(path)
        found = {name: data for name, data in self._inside.files.items() if name == path or name.startswith(path + "/")}
        if not found:
            raise NoSuchPath(f"there is no {path} in the sandbox")
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for name, data in sorted(found.items()):
                member = tarfile.TarInfo(posixpath.relpath(name, posixpath.dirname(path)))
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        yield archive.getvalue()

    def _absolute(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._inside.container.spec.workdir, path))

    async def ping(self, *, timeout_s: float) -> Vitals:
        """See `Guest`."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._call("ping", lambda: _value(Vitals(self._inside.num_oom_kills)))
        except TimeoutError:
            raise DeadlineExceeded(f"the agent did not answer within {timeout_s:g} s") from None

    async def close(self) -> None:
        """See `Guest`."""
        self._closed = True

    async def _run(self, request: ExecRequest) -> ExecResult:
        inside = self._inside
        if request.command == inside.container.spec.ready_command != "":
            return ExecResult(0 if asyncio.get_running_loop().time() >= inside.ready_at_s else 1)
        answer = self._commands(request) if self._commands else None
        return await inside.run(request) if answer is None else answer

    async def _call(self, call: str, answer: Callable[[], Awaitable[T]]) -> T:
        """Answer, unless a fault strikes, the container ends, or it is frozen."""
        inside = self._inside
        if self._closed or inside.status not in ("running", "paused"):
            raise GuestLost(f"{inside.container.name} has ended")
        try:
            async with asyncio.timeout(None) as scope:
                inside.calls.add(scope)
                try:
                    await inside.awake.wait()
                    if inside.behaviour.agent_hangs:
                        await asyncio.sleep(1e9)
                    if inside.sick:
                        raise SandboxUnavailable(f"no process can be started in {inside.container.name}")
                    result: T = await self._faulty(call, answer)
                    return result
                finally:
                    inside.calls.discard(scope)
        except TimeoutError:
            raise GuestLost(f"{inside.container.name} ended during the call") from None


class FakeSession:
    """A shell in a fake container."""

    def __init__(self, guest: FakeGuest, env: dict[str, str], cwd: str) -> None:
        self._guest, self._env, self._cwd = guest, env, cwd

    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MIB) -> ExecResult:
        """See `GuestSession`."""
        return await self._guest.exec(ExecRequest(command, timeout_s, self._env, self._cwd, b"", max_output_bytes))

    async def close(self) -> None:
        """See `GuestSession`."""


async def _value(value: T) -> T:
    return value
