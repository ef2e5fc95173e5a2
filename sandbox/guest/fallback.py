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
import posixpath
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from rollcage.sandbox.drivers.docker_api import Engine, one_line
from rollcage.sandbox.drivers.docker_exec import STDOUT, ExecPipe
from rollcage.sandbox.errors import DeadlineExceeded, GuestLost, NoSuchPath, SandboxUnavailable
from rollcage.sandbox.guest.base import OnOutput
from rollcage.sandbox.guest.fallback_exec import GRACE_S, KILL, MARK, Execs
from rollcage.sandbox.guest.fallback_output import OutputReader, feed
from rollcage.sandbox.guest.fallback_session import ExecSession
from rollcage.sandbox.guest.members import MemberCheck
from rollcage.sandbox.types import ExecRequest, ExecResult, SandboxSpec, Vitals

from aiodocker import DockerError  # isort: skip  (docker_api says how to get it where it is missing)

_NO_PATH = 44

# Prints the number of processes killed for memory, without a process of its own.
_OOM = """oom() { n=0; for f in /sys/fs/cgroup/memory/memory.oom_control /sys/fs/cgroup/memory.events; do
[ -r $f ] && while read k v; do [ "$k" = oom_kill ] && n=$v; done <$f; done; }"""

# $1 secret, $2 seconds, $3 directory, the rest: the command. The command runs in a session of its own, and so does the
# clock, which kills it and, once it strikes, lets nobody stop it any more: how it ends says whether it has. The secret
# tells the host where the output ends, whoever still holds the pipes.
_RUN = f"""{_OOM}
{KILL}
s=$1; t=$2; d=$3; shift 3; oom; before=$n; exec 3<&0
cd "$d" || {{ printf %s "$s"; printf '%s 126 0 0\\n' "$s" >&2; exit; }}
{MARK}=$s setsid "$@" <&3 3<&- & p=$!
(exec >/dev/null 2>&1 </dev/null 3<&-
exec setsid sh -c 'sleep "$0" || sleep "${{0%.*}}"; trap "" TERM; kill -KILL "-$1"' "$t" $p) & w=$!
{{ wait $p; code=$?; }} 2>/dev/null; kill -TERM -$w 2>/dev/null || kill -TERM $w 2>/dev/null; wait $w 2>/dev/null
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
        self._execs, self._name, self._spec = Execs(engine, name), name, spec

    async def exec(
        self, request: ExecRequest, on_output: OnOutput | None = None, stdin: AsyncIterator[bytes] | None = None
    ) -> ExecResult:
        """See `Guest.exec`; raises SandboxUnavailable where there is ``stdin``: nothing here says how fast to send."""
        if stdin is not None:
            raise SandboxUnavailable("input that comes while a command runs needs Python in the image.")
        secret = secrets.token_hex(16)
        command = ("sh", "-c", request.command) if isinstance(request.command, str) else request.command
        cwd = request.cwd or self._spec.workdir
        arguments = ("sh", "-c", _RUN, "sh", secret, f"{request.timeout_s:.3f}", cwd, *command)
        pipe = await self._execs.open(arguments, stdin=True, env=dict(request.env))
        reader = OutputReader(pipe, secret, request.max_output_bytes, on_output)
        feeding = asyncio.create_task(feed(pipe, request.stdin))
        try:
            return await reader.result(request.timeout_s + GRACE_S)
        except BaseException:
            self._execs.kill_later(secret)
            raise
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            await pipe.close()

    async def open_session(self, *, env: dict[str, str], cwd: str) -> ExecSession:
        """See `Guest.open_session`."""
        session = ExecSession(self._execs, env, cwd or self._spec.workdir)
        await session.start()
        return session

    async def put(self, chunks: AsyncIterator[bytes], folder: str, *, timeout_s: float) -> None:
        """See `Guest.put`."""
        script = f'mkdir -p "$1" && cd "$1" || exit {_NO_PATH}; exec tar -xof -'
        check = MemberCheck()
        pipe = await self._execs.open(("sh", "-c", script, "sh", folder), stdin=True)
        late = f"Putting into {folder!r} did not end within {timeout_s:g} s."
        async with self._used(pipe, late), asyncio.timeout(timeout_s):
            with suppress(OSError):  # it ended early: its exit code says why
                async for chunk in chunks:
                    check.feed(chunk)
                    await pipe.write(chunk)
                pipe.end_input()
            said = b""
            while piece := await pipe.read_any():
                said = (said + piece[1])[-2000:]
            await self._check_moved(pipe, folder, said)

    async def get(self, path: str, *, timeout_s: float) -> AsyncIterator[bytes]:
        """See `Guest.get`."""
        clean = posixpath.normpath(posixpath.join(self._spec.workdir, path))
        folder, name = posixpath.split(clean)
        script = f'[ -e "$1/$2" ] || [ -h "$1/$2" ] || exit {_NO_PATH}; exec tar -cf - -C "$1" -- "$2"'
        ends_at = asyncio.get_running_loop().time() + timeout_s
        pipe = await self._execs.open(("sh", "-c", script, "sh", folder, name or "."))
        said = b""
        async with self._used(pipe, f"Getting {path!r} did not end within {timeout_s:g} s."):
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

    async def _check_moved(self, pipe: ExecPipe, path: str, said: bytes) -> None:
        if await self._execs.exit_code(pipe, f"the moving of {path}"):
            raise NoSuchPath(f"{path!r} in {self._name}: {_text(said) or 'there is none'}")

    async def ping(self, *, timeout_s: float) -> Vitals:
        """See `Guest.ping`."""
        ends_at = asyncio.get_running_loop().time() + timeout_s
        late = f"{self._name} did not answer within {timeout_s:g} s."
        try:
            async with asyncio.timeout_at(ends_at):
                pipe = await self._execs.open(("sh", "-c", _PING))
        except TimeoutError:
            raise DeadlineExceeded(late) from None
        said = b""
        async with self._used(pipe, late), asyncio.timeout_at(ends_at):
            while piece := await pipe.read_any():
                said += piece[1]
            if await pipe.exit_code() != 0:
                raise SandboxUnavailable(f"no process can be started in {self._name}: {_text(said)}")
        lines = said.decode(errors="replace").splitlines()
        numbers = [int(line) for line in lines[:4]]
        usage_us = next((int(line.split()[1]) for line in lines[4:] if line.startswith("usage_usec ")), 0)
        return Vitals(numbers[0], numbers[1], numbers[2], numbers[3] / 1e9 + usage_us / 1e6)

    async def close(self) -> None:
        """See `Guest.close`."""
        await self._execs.close()

    @asynccontextmanager
    async def _used(self, pipe: ExecPipe, late: str) -> AsyncIterator[None]:
        """Close the pipe in the end. Raises DeadlineExceeded for a deadline in the block, GuestLost where it breaks."""
        try:
            yield
        except TimeoutError:
            raise DeadlineExceeded(late) from None
        except (OSError, DockerError) as error:
            raise GuestLost(f"The connection to {self._name} broke: {one_line(error)}") from error
        finally:
            await pipe.close()


def _text(said: bytes) -> str:
    return one_line(said.decode(errors="replace"))
