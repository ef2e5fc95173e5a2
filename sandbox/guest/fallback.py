"""The way into a container without Python: plain Docker execs of a POSIX shell (busybox or coreutils).

What is weaker here than through the agent:
- a command costs a Docker exec, 50 ms and more; times are taken on the host;
- an exit code from 129 to 192 counts as death by a signal, for a shell reports both alike;
- a background child that goes on writing after its command's end is stopped by the full pipe;
- what a session's command left in the background dies too when a later command of that session is timed out;
- files are moved by `tar`, which must be there, and the owner's right to read and write is all that is needed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import posixpath
import secrets
import shlex
from collections.abc import AsyncIterator
from contextlib import suppress

from rollcage.sandbox.drivers.docker_api import Engine, one_line
from rollcage.sandbox.drivers.docker_exec import STDERR, STDOUT, ExecPipe
from rollcage.sandbox.errors import DeadlineExceeded, GuestLost, HostUnavailable, NoSuchPath, SandboxUnavailable
from rollcage.sandbox.guest.agent import Kept
from rollcage.sandbox.guest.base import OnOutput
from rollcage.sandbox.guest.members import MemberCheck
from rollcage.sandbox.types import MIB, ExecRequest, ExecResult, Output, SandboxSpec, Vitals

from aiodocker import DockerError  # isort: skip  (docker_api says how to get it where it is missing)

GRACE_S = 10.0
"""An outer deadline is so much later than the inner one; an exec may be slow to start."""
_MARK = "ROLLCAGE_EXEC"
_NO_PATH = 44

# Prints the number of processes killed for memory, without a process of its own.
_OOM = """oom() { n=0; for f in /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events; do
[ -r $f ] && while read k v; do [ "$k" = oom_kill ] && n=$v; done <$f; done; }"""

# Kills all that carries the mark $1 in its environment, but process $2, until none is left.
_KILL = f"""hunt() {{ for i in 1 2 3 4 5 6 7 8 9; do found=
for e in $(grep -l "{_MARK}=$1" /proc/[0-9]*/environ 2>/dev/null); do e=${{e#/proc/}}; e=${{e%/environ}}
[ "$e" != "$2" ] && found="$found $e"; done
[ -z "$found" ] && break; kill -KILL $found 2>/dev/null; done; }}"""

# $1 secret, $2 seconds, $3 directory, the rest: the command. The command runs in a session of its own, and so does the
# clock, which kills it; the secret tells the host where the output ends, whoever still holds the pipes.
_RUN = f"""{_OOM}
{_KILL}
s=$1; t=$2; d=$3; shift 3; oom; before=$n; exec 3<&0
cd "$d" || {{ printf %s "$s"; printf '%s 126 0 0\\n' "$s" >&2; exit; }}
{_MARK}=$s setsid "$@" <&3 3<&- & p=$!
(exec >/dev/null 2>&1 </dev/null 3<&-
exec setsid sh -c 'sleep "$0" || sleep "${{0%.*}}"; kill -KILL "-$1"' "$t" $p) & w=$!
{{ wait $p; code=$?; }} 2>/dev/null; kill -KILL -$w 2>/dev/null || kill -KILL $w 2>/dev/null; wait $w 2>/dev/null
if [ $? -le 128 ]; then hunt "$s" 0; late=1; else late=0; fi
oom; printf %s "$s"; printf '%s %s %s %s\\n' "$s" $code $late $((n-before)) >&2"""

_PING = f"""{_OOM}
oom; true | true || exit 1
value() {{ for f in "$@"; do [ -r $f ] && read v <$f && echo $v && return; done; echo 0; }}
echo $n; value /sys/fs/cgroup/memory/memory.usage_in_bytes /sys/fs/cgroup/memory.current
value /sys/fs/cgroup/pids/pids.current /sys/fs/cgroup/pids.current
value /sys/fs/cgroup/cpuacct/cpuacct.usage; [ -r /sys/fs/cgroup/cpu.stat ] && cat /sys/fs/cgroup/cpu.stat; exit 0"""


class ExecGuest:
    """A `rollcage.sandbox.guest.base.Guest` by Docker execs.

    Args:
        engine: the host.
        name: the container's.
        spec: its specification.
    """

    def __init__(self, engine: Engine, name: str, spec: SandboxSpec) -> None:
        self._engine = engine
        self._name = name
        self._spec = spec
        self._closed = False
        self._killers: set[asyncio.Task[None]] = set()

    async def exec(self, request: ExecRequest, on_output: OnOutput | None = None) -> ExecResult:
        """See `Guest.exec`."""
        secret = secrets.token_hex(16)
        command = ("sh", "-c", request.command) if isinstance(request.command, str) else request.command
        cwd = request.cwd or self._spec.workdir
        arguments = ("sh", "-c", _RUN, "sh", secret, f"{request.timeout_s:.3f}", cwd, *command)
        pipe = await self._open(arguments, stdin=True, env=dict(request.env))
        reader = _Reader(pipe, secret, request.max_output_bytes, on_output)
        feeding = asyncio.create_task(_feed(pipe, request.stdin))
        try:
            return await reader.result(request.timeout_s + GRACE_S)
        except BaseException:
            self._kill_later(secret)
            raise
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            await pipe.close()

    async def open_session(self, *, env: dict[str, str], cwd: str) -> ExecSession:
        """See `Guest.open_session`."""
        session = ExecSession(self, env, cwd or self._spec.workdir)
        await session.start()
        return session

    async def put(self, chunks: AsyncIterator[bytes], folder: str, *, timeout_s: float) -> None:
        """See `Guest.put`."""
        script = f'mkdir -p "$1" && cd "$1" || exit {_NO_PATH}; exec tar -xof -'
        check = MemberCheck()
        pipe = await self._open(("sh", "-c", script, "sh", folder), stdin=True)
        try:
            async with asyncio.timeout(timeout_s):
                with suppress(OSError):  # it ended early: its exit code says why
                    async for chunk in chunks:
                        check.feed(chunk)
                        await pipe.write(chunk)
                    pipe.end_input()
                said = b""
                while piece := await pipe.read_any():
                    said = (said + piece[1])[-2000:]
                await self._check_moved(pipe, folder, said)
        except TimeoutError:
            raise DeadlineExceeded(f"Putting into {folder!r} did not end within {timeout_s:g} s.") from None
        except OSError as error:
            raise GuestLost(f"The connection to {self._name} broke: {one_line(error)}") from error
        finally:
            await pipe.close()

    async def get(self, path: str, *, timeout_s: float) -> AsyncIterator[bytes]:
        """See `Guest.get`."""
        clean = posixpath.normpath(posixpath.join(self._spec.workdir, path))
        folder, name = posixpath.split(clean)
        script = f'[ -e "$1/$2" ] || [ -h "$1/$2" ] || exit {_NO_PATH}; exec tar -cf - -C "$1" -- "$2"'
        ends_at = asyncio.get_running_loop().time() + timeout_s
        pipe = await self._open(("sh", "-c", script, "sh", folder, name or "."))
        said = b""
        try:
            while True:
                async with asyncio.timeout_at(ends_at):
                    piece = await pipe.read_any()
                    if piece is None:
                        await self._check_moved(pipe, path, said)
                        return
                if piece[0] == STDOUT:
                    yield piece[1]
                else:
                    said = (said + piece[1])[-2000:]
        except TimeoutError:
            raise DeadlineExceeded(f"Getting {path!r} did not end within {timeout_s:g} s.") from None
        except OSError as error:
            raise GuestLost(f"The connection to {self._name} broke: {one_line(error)}") from error
        finally:
            await pipe.close()

    async def _check_moved(self, pipe: ExecPipe, path: str, said: bytes) -> None:
        async with self._engine.call(f"say how {path} was moved"):
            code = await pipe.exit_code()
        if code:
            raise NoSuchPath(f"{path!r} in {self._name}: {one_line(said.decode(errors='replace')) or 'there is none'}")

    async def ping(self, *, timeout_s: float) -> Vitals:
        """See `Guest.ping`."""
        numbers: list[int] = []
        try:
            async with asyncio.timeout(timeout_s):
                pipe = await self._open(("sh", "-c", _PING))
                try:
                    said = b""
                    while piece := await pipe.read_any():
                        said += piece[1]
                    if await pipe.exit_code() != 0:
                        raise SandboxUnavailable(
                            f"no process can be started in {self._name}: {one_line(said.decode(errors='replace'))}"
                        )
                finally:
                    await pipe.close()
        except TimeoutError:
            raise DeadlineExceeded(f"{self._name} did not answer within {timeout_s:g} s.") from None
        except (OSError, DockerError) as error:
            raise GuestLost(f"The connection to {self._name} broke: {one_line(error)}") from error
        lines = said.decode(errors="replace").splitlines()
        numbers = [int(line) for line in lines[:4]]
        usage_us = next((int(line.split()[1]) for line in lines[4:] if line.startswith("usage_usec ")), 0)
        return Vitals(numbers[0], numbers[1], numbers[2], numbers[3] / 1e9 + usage_us / 1e6)

    async def close(self) -> None:
        """See `Guest.close`."""
        await self._settle()
        self._closed = True

    async def _settle(self) -> None:
        """Wait until what is to be killed is dead."""
        if self._killers:
            await asyncio.wait(self._killers)

    async def _open(
        self, command: tuple[str, ...], *, stdin: bool = False, env: dict[str, str] | None = None
    ) -> ExecPipe:
        """Start a process; raises GuestLost where the container does not run."""
        if self._closed:
            raise GuestLost(f"The connection to {self._name} was closed.")
        async with self._engine.call(f"run a command in {self._name}") as docker:
            try:
                return await ExecPipe.open(docker, self._name, command, stdin=stdin, env=env)
            except DockerError as error:
                if error.status in (404, 409) or "is not running" in error.message:
                    raise GuestLost(f"{self._name} takes no command: {one_line(error.message)}") from error
                if "OCI runtime exec failed" in error.message:
                    raise SandboxUnavailable(
                        f"no shell can be started in {self._name}: {one_line(error.message)}"
                    ) from error
                raise

    def _kill_later(self, secret: str, spare: str = "0") -> None:
        """Kill what carries the mark, from outside, beside whoever waits."""
        task = asyncio.create_task(self._kill(secret, spare))
        self._killers.add(task)
        task.add_done_callback(self._killers.discard)

    async def _kill(self, secret: str, spare: str) -> None:
        try:
            async with asyncio.timeout(GRACE_S):
                pipe = await self._open(("sh", "-c", f'{_KILL}\nhunt "$0" "$1"', secret, spare))
                try:
                    while await pipe.read_any():
                        pass
                finally:
                    await pipe.close()
        except (GuestLost, SandboxUnavailable, HostUnavailable, TimeoutError, OSError):
            pass  # the container is dead, or too full to start even this: its owner removes it


class ExecSession:
    """A shell over one exec; see `rollcage.sandbox.base.Session`."""

    def __init__(self, guest: ExecGuest, env: dict[str, str], cwd: str) -> None:
        self._guest = guest
        self._env = env
        self._cwd = cwd
        self._mark = secrets.token_hex(16)
        self._pid = "0"
        self._pipe: ExecPipe | None = None
        self._rest: dict[int, bytes] = {}
        self._lock = asyncio.Lock()
        self._closed = False

    async def start(self) -> None:
        """Start the shell."""
        script = (
            f'cd "$1" || exit 1; export {_MARK}=$0; echo $$;'
            " command -v bash >/dev/null && exec bash --norc --noprofile; exec sh"
        )
        pipe = await self._guest._open(("sh", "-c", script, self._mark, self._cwd), stdin=True, env=self._env)
        first = b""
        try:
            async with asyncio.timeout(GRACE_S):
                while b"\n" not in first and (piece := await pipe.read_any()):
                    first += piece[1]
        except (TimeoutError, OSError) as error:
            await pipe.close()
            raise GuestLost("the shell did not start") from error
        pid, _, rest = first.partition(b"\n")
        if not pid.isdigit():
            await pipe.close()
            raise SandboxUnavailable(f"no shell can be started: {one_line(first.decode(errors='replace'))}")
        self._pid, self._pipe, self._rest = pid.decode(), pipe, {STDOUT: rest}

    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MIB) -> ExecResult:
        """See `rollcage.sandbox.base.Session.run`."""
        async with self._lock:
            if self._closed:
                raise SandboxUnavailable("the session is closed.")
            if self._pipe is None:
                await self.start()
            pipe = self._pipe
            assert pipe is not None
            secret = secrets.token_hex(16)
            line = (
                f"command eval {shlex.quote(command)} </dev/null; set -- $?;"
                f" printf %s {secret}; printf '%s %s 0 0\\n' {secret} $1 >&2\n"
            )
            reader = _Reader(pipe, secret, max_output_bytes, None, self._rest)
            try:
                with suppress(OSError):  # the shell has ended: the reader finds out
                    await pipe.write(line.encode())
                return await self._result(reader, timeout_s)
            except BaseException:
                await self._drop()
                raise

    async def _result(self, reader: _Reader, timeout_s: float) -> ExecResult:
        """Read to the end of the command, which is killed at its deadline; then of the shell, should that hang too."""
        reading = asyncio.create_task(reader.result(timeout_s + 2 * GRACE_S))
        try:
            await asyncio.wait((reading,), timeout=timeout_s)
            late = not reading.done()
            if late:
                await self._guest._kill(self._mark, self._pid)
                await asyncio.wait((reading,), timeout=1.0)
            if not reading.done():
                await self._drop()
                return reader.so_far(None, timed_out=True)
            try:
                result = await reading
            except GuestLost:  # the command ended the shell
                assert self._pipe is not None
                async with self._guest._engine.call("say how the shell ended"):
                    code = await self._pipe.exit_code()
                await self._drop()
                if code is None:
                    raise
                return reader.so_far(code, timed_out=late)
            return dataclasses.replace(result, timed_out=late)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _drop(self) -> None:
        pipe, self._pipe, self._rest = self._pipe, None, {}
        if pipe is not None:
            self._guest._kill_later(self._mark)
            await pipe.close()

    async def close(self) -> None:
        """End the shell and what it started; idempotent."""
        self._closed = True
        await self._drop()
        await self._guest._settle()


class _Reader:
    """Reads one command's output up to its secret, on both streams."""

    def __init__(
        self,
        pipe: ExecPipe,
        secret: str,
        max_output_bytes: int,
        on_output: OnOutput | None,
        rest: dict[int, bytes] | None = None,
    ) -> None:
        self._pipe = pipe
        self._secret = secret.encode()
        self._on_output = on_output
        self._rest = {} if rest is None else rest
        """What came and is nobody's yet; after the end, the next command's."""
        self._kept = {STDOUT: Kept(max_output_bytes), STDERR: Kept(max_output_bytes)}
        self._started = asyncio.get_running_loop().time()

    async def result(self, timeout_s: float) -> ExecResult:
        """Return the command's result; raises GuestLost at the end of the stream, or DeadlineExceeded."""
        try:
            async with asyncio.timeout(timeout_s):
                for source in (STDOUT, STDERR):
                    if await self._until_secret(source):
                        continue
                    raise GuestLost("The command's connection ended before the command did.")
                while b"\n" not in self._rest[STDERR]:
                    if not await self._more():
                        raise GuestLost("The command's connection ended before the command did.")
        except TimeoutError:
            raise DeadlineExceeded(f"the command gave no answer within {timeout_s:g} s.") from None
        except OSError as error:
            raise GuestLost(f"The command's connection broke: {one_line(error)}") from error
        line, _, self._rest[STDERR] = self._rest[STDERR].partition(b"\n")
        code, late, num_oom_kills = (int(word) for word in line.split())
        return self.so_far(code, timed_out=bool(late), oom_killed=num_oom_kills > 0)

    async def _until_secret(self, source: int) -> bool:
        """Hand out a stream up to the secret, and the other stream as it comes; False where it ends before."""
        while True:
            for each in (STDOUT, STDERR):
                await self._hand_out(each, stop=each == source)
            if self._secret in self._rest.get(source, b""):
                self._rest[source] = self._rest[source].partition(self._secret)[2]
                return True
            if not await self._more():
                for each in (STDOUT, STDERR):
                    await self._take(each, self._rest.pop(each, b""))
                return False

    async def _hand_out(self, source: int, *, stop: bool) -> None:
        """Hand out what cannot belong to the secret."""
        data = self._rest.get(source, b"")
        if source == STDOUT and not stop:
            return  # its secret has come: the rest is the next command's
        at = data.find(self._secret)
        if at < 0:
            at = len(data) - next(
                (k for k in range(min(len(self._secret) - 1, len(data)), 0, -1) if data.endswith(self._secret[:k])), 0
            )
        await self._take(source, data[:at])
        self._rest[source] = data[at:]

    async def _more(self) -> bool:
        piece = await self._pipe.read_any()
        if piece is not None:
            self._rest[piece[0]] = self._rest.get(piece[0], b"") + piece[1]
        return piece is not None

    async def _take(self, source: int, data: bytes) -> None:
        if data:
            self._kept[source].add(data)
            if self._on_output is not None:
                await self._on_output(Output("stdout" if source == STDOUT else "stderr", data))

    def so_far(self, code: int | None, *, timed_out: bool, oom_killed: bool = False) -> ExecResult:
        """Return what has come, with an exit code as a shell reports it."""
        signal = code - 128 if code is not None and 128 < code <= 192 else None
        if timed_out:
            code, signal = None, 9
        stdout, stderr = self._kept[STDOUT], self._kept[STDERR]
        return ExecResult(
            exit_code=None if signal is not None else code,
            signal=signal,
            timed_out=timed_out,
            oom_killed=oom_killed,
            truncated=any(kept.num_bytes > kept.limit for kept in (stdout, stderr)),
            num_stdout_bytes=stdout.num_bytes,
            num_stderr_bytes=stderr.num_bytes,
            stdout=stdout.take(),
            stderr=stderr.take(),
            duration_s=asyncio.get_running_loop().time() - self._started,
        )


async def _feed(pipe: ExecPipe, stdin: bytes) -> None:
    with suppress(OSError):  # the command does not read it all
        await pipe.write(stdin)
        pipe.end_input()
