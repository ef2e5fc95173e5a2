"""A shell that stays, over one Docker exec."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import shlex
from contextlib import suppress

from rollcage.sandbox.drivers.docker_api import one_line
from rollcage.sandbox.drivers.docker_exec import STDOUT, ExecPipe
from rollcage.sandbox.errors import GuestLost, SandboxUnavailable
from rollcage.sandbox.guest.fallback_exec import GRACE_S, MARK, Execs
from rollcage.sandbox.guest.fallback_output import OutputReader
from rollcage.sandbox.types import MIB, ExecResult


class ExecSession:
    """A shell over one exec; see `rollcage.sandbox.base.Session`."""

    def __init__(self, execs: Execs, env: dict[str, str], cwd: str) -> None:
        self._execs = execs
        self._env = env
        self._cwd = cwd
        self._mark = ""
        self._pid = "0"
        self._pipe: ExecPipe | None = None
        self._rest: dict[int, bytes] = {}
        self._lock = asyncio.Lock()
        self._closed = False

    async def start(self) -> None:
        """Start the shell."""
        script = (
            f'cd "$1" || exit 1; export {MARK}=$0; echo $$;'
            " command -v bash >/dev/null && exec bash --norc --noprofile; exec sh"
        )
        self._mark = secrets.token_hex(16)  # a new one each time: what kills the shell before may come late
        pipe = await self._execs.open(("sh", "-c", script, self._mark, self._cwd), stdin=True, env=self._env)
        first = b""
        try:
            async with asyncio.timeout(GRACE_S):
                while b"\n" not in first and (piece := await pipe.read_any()):
                    first += piece[1]
            pid, _, rest = first.partition(b"\n")
            if not pid.isdigit():
                raise SandboxUnavailable(f"no shell can be started: {one_line(first.decode(errors='replace'))}")
            self._pid, self._pipe, self._rest = pid.decode(), pipe, {STDOUT: rest}
        except (TimeoutError, OSError) as error:
            raise GuestLost("the shell did not start") from error
        finally:
            if self._pipe is not pipe:
                await pipe.close()

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
            reader = OutputReader(pipe, secret, max_output_bytes, None, self._rest)
            try:
                with suppress(OSError):  # the shell has ended: the reader finds out
                    await pipe.write(line.encode())
                return await self._result(reader, timeout_s)
            except BaseException:
                await self._drop()
                raise

    async def _result(self, reader: OutputReader, timeout_s: float) -> ExecResult:
        """Read to the end of the command, which is killed at its deadline; then of the shell, should that hang too."""
        reading = asyncio.create_task(reader.result(timeout_s + 2 * GRACE_S))
        try:
            await asyncio.wait((reading,), timeout=timeout_s)
            late = not reading.done()
            if late:
                await self._execs.kill(self._mark, self._pid)
                await asyncio.wait((reading,), timeout=1.0)
            if not reading.done():
                await self._drop()
                return reader.so_far(None, timed_out=True)
            try:
                result = await reading
            except GuestLost:  # the command ended the shell
                assert self._pipe is not None
                code = await self._execs.exit_code(self._pipe, "the shell")
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
            self._execs.kill_later(self._mark)
            await pipe.close()

    async def close(self) -> None:
        """End the shell and what it started; idempotent."""
        self._closed = True
        await self._drop()
        await self._execs.settle()
