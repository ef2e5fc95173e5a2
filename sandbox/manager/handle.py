"""What users hold: a sandbox and its shells, every call fenced by the life that it was made to."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from rollcage.sandbox.asked import check_bounds
from rollcage.sandbox.base import Sandbox
from rollcage.sandbox.errors import (
    BadRequest,
    DeadlineExceeded,
    GuestLost,
    SandboxError,
    SandboxNotFound,
    SandboxRestarted,
    SandboxUnavailable,
)
from rollcage.sandbox.guest.base import GuestSession, OnOutput
from rollcage.sandbox.manager.box import Box, Life
from rollcage.sandbox.manager.reading import read_file
from rollcage.sandbox.manager.rooms import Rooms
from rollcage.sandbox.types import MIB, Event, ExecRequest, ExecResult, Output, SandboxInfo, Snapshot, State

T = TypeVar("T")
SESSION_TIMEOUT_S = 30.0
"""Longest start of a shell."""
EXAMINE_TIMEOUT_S = 30.0


class SandboxHandle(Sandbox):
    """One sandbox; see `rollcage.sandbox.base.Sandbox`.

    Args:
        rooms: the manager's.
        box: the sandbox.
        generation: the life that its holder knows of: where there is a later one the next call raises
            `SandboxRestarted`, once.
    """

    def __init__(self, rooms: Rooms, box: Box, generation: int) -> None:
        self.id = box.info.id
        self.generation = generation
        self._all_rooms, self._box = rooms, box

    @property
    def _rooms(self) -> Rooms:
        if self._all_rooms.fleet.is_closed:
            raise SandboxUnavailable(f"the manager of sandbox {self.id} has been closed", state=self._box.info.state)
        return self._all_rooms

    async def session(self, *, env: Mapping[str, str] | None = None, cwd: str = "") -> SessionHandle:
        """See `Sandbox`."""
        async with self._call(SESSION_TIMEOUT_S) as (life, _):
            shell = await life.guest.open_session(env=dict(env or {}), cwd=cwd)
        return SessionHandle(self, life, shell)

    async def read(self, source: str, *, max_bytes: int = 16 * MIB) -> bytes:
        """See `Sandbox`."""
        async with aclosing(self.get_archive(source)) as chunks:
            return await read_file(chunks, source, max_bytes)

    async def put_archive(self, chunks: AsyncIterator[bytes], folder: str, *, timeout_s: float = 600.0) -> None:
        """See `Sandbox`."""
        async with self._call(timeout_s) as (life, _):
            await life.guest.put(chunks, posixpath.normpath(folder), timeout_s=timeout_s)

    async def get_archive(self, source: str, *, timeout_s: float = 600.0) -> AsyncGenerator[bytes, None]:
        """See `Sandbox`."""
        pieces: AsyncIterator[bytes] | None = None
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            while True:  # each piece is a call of its own: a deadline must not strike while the reader has its turn
                async with self._call(deadline - asyncio.get_running_loop().time()) as (life, _):
                    if pieces is None:
                        begun_in, pieces = life, life.guest.get(posixpath.normpath(source), timeout_s=timeout_s)
                    elif life is not begun_in:
                        raise begun_in.error or SandboxUnavailable(f"the connection to {self.id} was lost")
                    piece = await anext(pieces, None)
                if piece is None:
                    return
                yield piece
        finally:
            if pieces is not None and hasattr(pieces, "aclose"):
                await pieces.aclose()

    async def snapshot(self) -> Snapshot:
        """See `Sandbox`."""
        self._fence()
        async with self._in_time():
            return await self._rooms.snapshots.take(self._box)

    async def restore(self, snapshot_id: str = "") -> None:
        """See `Sandbox`."""
        self._fence()
        await self._begin_anew(self._rooms.snapshots.find(self._box, snapshot_id).image)

    async def restart(self) -> None:
        """See `Sandbox`."""
        self._fence()
        try:
            image = self._rooms.snapshots.find(self._box, "").image
        except SandboxNotFound:
            image = ""  # its specification's
        await self._begin_anew(image)

    async def _begin_anew(self, image: str) -> None:
        try:
            async with self._in_time():
                await self._rooms.lives.restore(self._box, image)
        finally:
            self.generation = self._box.info.generation  # its holder asked for it: no news

    async def fork(self, *, key: str = "", snapshot_id: str = "") -> SandboxHandle:
        """See `Sandbox`."""
        self._fence()
        snapshot = self._rooms.snapshots.find(self._box, snapshot_id) if snapshot_id else await self.snapshot()
        box = await self._rooms.fork(self._box, snapshot, key)
        return SandboxHandle(self._rooms, box, box.info.generation)

    async def renew(self, ttl_s: float | None = None) -> None:
        """See `Sandbox`."""
        self._rooms.renew(self._box, ttl_s)

    async def pause(self) -> None:
        """See `Sandbox`."""
        async with self._in_time():
            await self._rooms.lives.pause(self._box, True)

    async def resume(self) -> None:
        """See `Sandbox`."""
        async with self._in_time():
            await self._rooms.lives.pause(self._box, False)

    async def info(self) -> SandboxInfo:
        """See `Sandbox`."""
        return self._box.info

    async def events(self, *, after: int = 0) -> list[Event]:
        """See `Sandbox`."""
        return self._rooms.fleet.store.events(sandbox_id=self.id, after=after)

    async def logs(self, *, num_lines: int = 100) -> str:
        """See `Sandbox`."""
        box = self._box
        if box.info.host and box.info.state not in (State.FAILED, State.DELETED):
            return await self._rooms.fleet.host(box).driver.logs(box.name, num_lines=num_lines)
        return "\n".join(box.row.log_tail.splitlines()[-num_lines:])

    async def delete(self) -> None:
        """See `Sandbox`."""
        async with self._in_time():
            await self._rooms.lives.delete(self._box, "deleted by its user")
            await self._rooms.snapshots.prune()

    async def _exec(self, request: ExecRequest) -> ExecResult:
        begin_s = asyncio.get_running_loop().time()
        async with self._call(request.timeout_s) as (life, _):
            result = await life.guest.exec(request)
        return self._executed(result, life, begin_s)

    async def _stream(
        self, request: ExecRequest, stdin: AsyncIterator[bytes] | None = None
    ) -> AsyncGenerator[Output | ExecResult, None]:
        pieces: asyncio.Queue[Output | ExecResult | Exception] = asyncio.Queue(1)
        running = asyncio.create_task(self._pump(request, pieces, stdin))
        try:
            while True:
                piece = await pieces.get()
                if isinstance(piece, Exception):
                    raise piece
                yield piece
                if isinstance(piece, ExecResult):
                    return
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def _pump(
        self,
        request: ExecRequest,
        pieces: asyncio.Queue[Output | ExecResult | Exception],
        stdin: AsyncIterator[bytes] | None,
    ) -> None:
        begin_s = asyncio.get_running_loop().time()
        try:
            async with self._call(request.timeout_s) as (life, scope):
                result = await life.guest.exec(request, _while_read(pieces.put, scope, life), stdin)
            await pieces.put(self._executed(result, life, begin_s))
        except Exception as error:  # noqa: BLE001  (whoever reads the stream raises it: ours, or what ``stdin`` raised)
            await pieces.put(error)

    @asynccontextmanager
    async def _call(self, timeout_s: float, bound: Life | None = None) -> AsyncIterator[tuple[Life, asyncio.Timeout]]:
        """Make a call to the present life, or to the one that it is bound to.

        Raises:
            SandboxUnavailable, SandboxRestarted, DeadlineExceeded: see `rollcage.sandbox.base.Sandbox.exec`.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s + self._rooms.fleet.settings.grace_s
        self._fence()
        life = bound or await self._rooms.present_life(self._box, deadline)
        self._fence()  # while it was waited for, a later one may have taken its place
        try:
            async with life.call(deadline) as scope:
                yield life, scope
        except GuestLost as lost:
            await asyncio.wait([self._rooms.lives.lost(self._box, life)], timeout=EXAMINE_TIMEOUT_S)
            if (error := life.error) is not None:
                raise self._heard(error) from None
            state = self._box.info.state
            text = f"the connection into sandbox {self.id} was lost during the call, whose outcome is unknown: {lost}"
            raise SandboxUnavailable(text, state=state) from None
        except SandboxRestarted as error:
            raise self._heard(error) from None

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        limit_s = self._rooms.fleet.settings.operation_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                yield
        except TimeoutError:
            raise DeadlineExceeded(f"sandbox {self.id}: no answer within {limit_s:g} s") from None

    def _fence(self) -> None:
        info = self._box.info
        if info.generation > self.generation and info.state is not State.DELETED:
            text = f"sandbox {self.id} is in its life {info.generation}, no longer in {self.generation}: {info.message}"
            raise self._heard(SandboxRestarted(text.rstrip(": "), generation=info.generation))

    def _heard(self, error: SandboxError) -> SandboxError:
        if isinstance(error, SandboxRestarted):
            self.generation = max(self.generation, error.generation)
        return error

    def _executed(self, result: ExecResult, life: Life, begin_s: float) -> ExecResult:
        self._rooms.fleet.meter.executed(result, asyncio.get_running_loop().time() - begin_s)
        return replace(result, generation=life.generation)


class SessionHandle:
    """A shell in one life of a sandbox; see `rollcage.sandbox.base.Session`."""

    def __init__(self, sandbox: SandboxHandle, life: Life, shell: GuestSession) -> None:
        self._sandbox, self._life, self._shell = sandbox, life, shell

    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MIB) -> ExecResult:
        """See `Session`."""
        if not isinstance(command, str):
            raise BadRequest(f"a shell's command must be a string, not {command!r}.")
        check_bounds(timeout_s, max_output_bytes)
        begin_s = asyncio.get_running_loop().time()
        async with self._sandbox._call(timeout_s, self._life):
            result = await self._shell.run(command, timeout_s=timeout_s, max_output_bytes=max_output_bytes)
        return self._sandbox._executed(result, self._life, begin_s)

    async def close(self) -> None:
        """See `Session`."""
        if self._life.error is None:
            try:
                await self._shell.close()
            except GuestLost:
                pass  # it went with its connection


def _while_read(put: Callable[[Output], Awaitable[None]], scope: asyncio.Timeout, life: Life) -> OnOutput:
    """Return ``put`` such that the call's deadline does not run while its reader is at work."""

    async def on_output(piece: Output) -> None:
        loop, deadline = asyncio.get_running_loop(), scope.when()
        begin_s = loop.time()
        scope.reschedule(None)
        await put(piece)
        if deadline is not None and life.error is None:
            scope.reschedule(deadline + loop.time() - begin_s)

    return on_output
