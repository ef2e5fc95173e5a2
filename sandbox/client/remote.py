"""A sandbox and a shell of a service: the same interface as in process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rollcage.sandbox.base import Sandbox
from rollcage.sandbox.client.connection import Connection
from rollcage.sandbox.client.wire import (
    Json,
    error_from_json,
    event_from_json,
    info_from_json,
    output_from_json,
    result_from_json,
    snapshot_from_json,
    text_of,
)
from rollcage.sandbox.errors import SandboxRestarted, SandboxUnavailable, ServiceUnreachable
from rollcage.sandbox.types import MIB, Event, ExecRequest, ExecResult, Output, SandboxInfo, Snapshot, State

if TYPE_CHECKING:
    import aiohttp

CALL_LIMIT_S = 180.0
"""Longest wait for a call that has no deadline of its own: longer than the service's."""
GRACE_S = 60.0
"""So much longer than a call's own deadline is the wait for its answer: longer than the service's."""


class RemoteSandbox(Sandbox):
    """One sandbox of a service; see `rollcage.sandbox.base.Sandbox`.

    Args:
        connection: to the service.
        info: what is known of it: each call says of which life its holder knows.
    """

    def __init__(self, connection: Connection, info: SandboxInfo) -> None:
        self.id, self._connection, self._info = info.id, connection, info
        self._generation = info.generation

    async def session(self, *, env: Mapping[str, str] | None = None, cwd: str = "") -> RemoteSession:
        """See `Sandbox`."""
        told = await self._post("sessions", body={"env": dict(env or {}), "cwd": cwd})
        return RemoteSession(self, told["session_id"])

    async def put_archive(self, chunks: AsyncIterator[bytes], folder: str, *, timeout_s: float = 600.0) -> None:
        """See `Sandbox`."""
        failures: list[Exception] = []
        idle = asyncio.Event()  # nobody waits for the next chunk: only then may their owner close them
        idle.set()

        async def watched() -> AsyncIterator[bytes]:
            while True:
                idle.clear()
                try:
                    chunk = await anext(chunks, None)
                except Exception as error:
                    failures.append(error)  # the HTTP client tells of it in words of its own
                    raise
                finally:
                    idle.set()
                if chunk is None:
                    return
                yield chunk

        query = {"folder": folder, "timeout_s": timeout_s}
        try:
            async with self._open(
                "POST", "files", query=query, data=watched(), limit_s=timeout_s + GRACE_S
            ) as response:
                await response.read()
        except ServiceUnreachable:
            if failures:
                raise failures[0] from None
            raise
        finally:
            await idle.wait()  # the HTTP client has called its writer off, but does not wait for its end

    async def get_archive(self, source: str, *, timeout_s: float = 600.0) -> AsyncGenerator[bytes, None]:
        """See `Sandbox`."""
        query = {"path": source, "timeout_s": timeout_s}
        async with self._open("GET", "files", query=query, limit_s=timeout_s + GRACE_S, at_leisure=True) as response:
            async for chunk in response.content.iter_any():
                yield chunk

    async def read(self, source: str, *, max_bytes: int = 16 * MIB) -> bytes:
        """See `Sandbox`."""
        query = {"path": source, "max_bytes": max_bytes}
        async with self._open("GET", "content", query=query, limit_s=CALL_LIMIT_S, repeat=True) as response:
            return await response.read()

    async def snapshot(self) -> Snapshot:
        """See `Sandbox`."""
        return snapshot_from_json(await self._post("snapshots"))

    async def restore(self, snapshot_id: str = "") -> None:
        """See `Sandbox`."""
        info = info_from_json(await self._post("restore", body={"snapshot_id": snapshot_id}))
        self._generation = info.generation  # its holder asked for it: no news

    async def restart(self) -> None:
        """See `Sandbox`."""
        self._generation = info_from_json(await self._post("restart")).generation

    async def fork(self, *, key: str = "", snapshot_id: str = "") -> RemoteSandbox:
        """See `Sandbox`."""
        info = await self._post("fork", body={"key": key, "snapshot_id": snapshot_id}, repeat=bool(key))
        return RemoteSandbox(self._connection, info_from_json(info))

    async def renew(self, ttl_s: float | None = None) -> None:
        """See `Sandbox`."""
        await self._post("renew", body={"ttl_s": ttl_s}, repeat=True)

    async def pause(self) -> None:
        """See `Sandbox`."""
        await self._post("pause", repeat=True)

    async def resume(self) -> None:
        """See `Sandbox`."""
        await self._post("resume", repeat=True)

    async def info(self) -> SandboxInfo:
        """See `Sandbox`."""
        try:
            self._info = info_from_json(await self._look())
        except SandboxUnavailable as error:
            if error.state != State.DELETED:
                raise
            self._info = replace(self._info, state=State.DELETED)
        return self._info

    async def events(self, *, after: int = 0) -> list[Event]:
        """See `Sandbox`."""
        return [event_from_json(data) for data in await self._look("events", query={"after": after})]

    async def logs(self, *, num_lines: int = 100) -> str:
        """See `Sandbox`."""
        text: str = await self._look("logs", query={"num_lines": num_lines})
        return text

    async def delete(self) -> None:
        """See `Sandbox`."""
        try:
            async with self._open("DELETE", limit_s=CALL_LIMIT_S, repeat=True) as response:
                await response.read()
        except SandboxUnavailable as error:
            if error.state != State.DELETED:
                raise

    async def _exec(self, request: ExecRequest) -> ExecResult:
        return result_from_json(await self._post("exec", body=_body(request), limit_s=request.timeout_s + GRACE_S))

    async def _stream(
        self, request: ExecRequest, stdin: AsyncIterator[bytes] | None = None
    ) -> AsyncGenerator[Output | ExecResult, None]:
        limit_s = request.timeout_s + GRACE_S
        body = _body(request)
        responses: list[aiohttp.ClientResponse] = []
        failures: list[Exception] = []
        if stdin is None:
            asked = self._open("POST", "stream", body=body, limit_s=limit_s, at_leisure=True)
        else:
            data = _watched(stdin, responses, failures)
            query = {"command": json.dumps(body)}
            asked = self._open("POST", "pipe", query=query, data=data, limit_s=limit_s, at_leisure=True)
        try:
            async with asked as response:
                responses.append(response)
                rest = bytearray()
                async for piece in response.content.iter_any():
                    rest += piece
                    while b"\n" in rest:
                        line, _, rest = rest.partition(b"\n")
                        if not line:
                            continue
                        item = _item(line)
                        yield item
                        if isinstance(item, ExecResult):
                            return
                raise ServiceUnreachable(f"the service at {self._connection.address} broke the stream off.")
        except ServiceUnreachable:
            if failures:
                raise failures[0] from None
            raise

    async def _look(self, *path: str, query: Mapping[str, Any] | None = None) -> Any:
        async with self._open("GET", *path, query=query, limit_s=CALL_LIMIT_S, repeat=True) as response:
            return await response.json()

    async def _post(
        self, *path: str, body: Json | None = None, limit_s: float = CALL_LIMIT_S, repeat: bool = False
    ) -> Any:
        async with self._open("POST", *path, body=body, limit_s=limit_s, repeat=repeat) as response:
            return await response.json()

    @asynccontextmanager
    async def _open(
        self, method: str, *path: str, query: Mapping[str, Any] | None = None, **how: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        told = {**(query or {}), "generation": self._generation}
        try:
            async with self._connection.open(method, "sandboxes", self.id, *path, query=told, **how) as response:
                yield response
        except SandboxRestarted as error:
            self._generation = max(self._generation, error.generation)  # it is told once
            raise


class RemoteSession:
    """A shell in a sandbox of a service; see `rollcage.sandbox.base.Session`."""

    def __init__(self, sandbox: RemoteSandbox, session_id: str) -> None:
        self._sandbox, self._path = sandbox, ("sessions", session_id)

    async def run(self, command: str, *, timeout_s: float = 60.0, max_output_bytes: int = MIB) -> ExecResult:
        """See `Session`."""
        body = {"command": command, "timeout_s": timeout_s, "max_output_bytes": max_output_bytes}
        return result_from_json(await self._sandbox._post(*self._path, "run", body=body, limit_s=timeout_s + GRACE_S))

    async def close(self) -> None:
        """See `Session`."""
        async with self._sandbox._open("DELETE", *self._path, limit_s=CALL_LIMIT_S, repeat=True) as response:
            await response.read()


async def _watched(
    stdin: AsyncIterator[bytes], responses: list[aiohttp.ClientResponse], failures: list[Exception]
) -> AsyncGenerator[bytes, None]:
    """Yield what ``stdin`` does; what it raises breaks the call off, and is kept for whoever made it."""
    try:
        async for chunk in stdin:
            yield chunk
    except Exception as error:
        failures.append(error)
        for response in responses:
            response.close()  # the HTTP client would go on reading
        raise


def _body(request: ExecRequest) -> Json:
    return {**asdict(request), "stdin": text_of(request.stdin)}


def _item(line: bytes | bytearray) -> Output | ExecResult:
    [(kind, data)] = json.loads(line).items()
    if kind == "error":
        raise error_from_json(data)
    return output_from_json(data) if kind == "output" else result_from_json(data)
