"""What a command writes to a Docker exec, up to the secret that tells its end, whoever still holds the pipes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from rollcage.sandbox.drivers.docker_api import one_line
from rollcage.sandbox.drivers.docker_exec import STDERR, STDOUT, ExecPipe
from rollcage.sandbox.errors import DeadlineExceeded, GuestLost
from rollcage.sandbox.guest.agent.frames import Kept
from rollcage.sandbox.guest.base import OnOutput
from rollcage.sandbox.types import ExecResult, Output


class OutputReader:
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


async def feed(pipe: ExecPipe, stdin: bytes) -> None:
    """Give a command its input, to its end."""
    with suppress(OSError):  # the command does not read it all
        await pipe.write(stdin)
        pipe.end_input()
