"""The routes of what happens inside a sandbox: commands, shells and files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Json
from starlette.types import Message

from rollcage.errors import RollcageError
from rollcage.sandbox.client.wire import error_to_json, output_to_json, result_to_json
from rollcage.sandbox.service import bodies
from rollcage.sandbox.service.calls import GRACE_S, Streamed, never, take_body, while_connected
from rollcage.sandbox.service.found import Generation, Id, Present, ask, present, sessions_of
from rollcage.sandbox.types import MIB, ExecResult, Output

router = APIRouter()
Inner = Annotated[str, Query(max_length=4096, pattern=r"^[^\x00]*$", description="in the sandbox")]
Timeout = Annotated[float, Query(gt=0, le=bodies.DAY_S, description="seconds")]
RAW: dict[str, Any] = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
TAR: dict[str, Any] = {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}


@router.post("/v1/sandboxes/{sandbox_id}/exec", response_model=ExecResult, tags=["commands"])
async def execute(request: Request, it: Present, body: bodies.Exec) -> Response:
    """Run a command to its end. A client that leaves ends it."""
    call = it.exec(**_command(body))
    return JSONResponse(result_to_json(await ask(request, call, body.timeout_s + GRACE_S)))


@router.post("/v1/sandboxes/{sandbox_id}/stream", tags=["commands"])
async def stream(it: Present, body: bodies.Exec) -> Response:
    """Run a command; its output comes as it is written, one JSON object a line.

    Lines are `{"output": {"source", "data"}}`; the last is `{"result": ...}` or `{"error": ...}`. A slow reader
    slows the command down; a client that leaves ends it.
    """
    return Streamed(
        _lines(it.stream(**_command(body))), media_type="application/x-ndjson", limit_s=body.timeout_s + GRACE_S
    )


@router.post("/v1/sandboxes/{sandbox_id}/pipe", openapi_extra={"requestBody": RAW}, tags=["commands"])
async def pipe(
    request: Request, it: Present, command: Annotated[Json[bodies.Exec], Query(description="JSON, as of `exec`")]
) -> Response:
    """Run a command whose input is the body, sent on while it runs: one can talk to it.

    The answer is as of `stream`, and begins at once, with an empty line. A command that reads slowly slows the client
    down; one that reads nothing any more does not hear that the client leaves before its own deadline.
    """
    ended = asyncio.Event()

    async def chunks() -> AsyncIterator[bytes]:
        async for chunk in request.stream():  # it raises where the client leaves
            yield chunk
        ended.set()

    async def lines() -> AsyncGenerator[bytes, None]:
        yield b"\n"
        async with aclosing(_lines(it.stream(**{**_command(command), "stdin": chunks()}), has_started=True)) as told:
            async for line in told:
                yield line

    async def left() -> Message:
        await ended.wait()
        return await request.receive()

    return Streamed(lines(), media_type="application/x-ndjson", limit_s=command.timeout_s + GRACE_S, hears_leaving=left)


@router.post("/v1/sandboxes/{sandbox_id}/sessions", status_code=201, tags=["commands"])
async def open_session(request: Request, sandbox_id: Id, it: Present, body: bodies.OpenSession) -> Response:
    """Start a shell; returns `{"session_id"}`."""

    async def opened() -> str:
        return await sessions_of(request).add(sandbox_id, await it.session(env=body.env, cwd=body.cwd))

    session_id = await ask(request, opened())
    return JSONResponse({"session_id": session_id}, status_code=201)


@router.post("/v1/sandboxes/{sandbox_id}/sessions/{session_id}/run", response_model=ExecResult, tags=["commands"])
async def run(request: Request, sandbox_id: Id, session_id: str, body: bodies.Run) -> Response:
    """Run a command in a shell; one at a time."""
    with sessions_of(request).using(sandbox_id, session_id) as session:
        call = session.run(body.command, timeout_s=body.timeout_s, max_output_bytes=body.max_output_bytes)
        return JSONResponse(result_to_json(await ask(request, call, body.timeout_s + GRACE_S)))


@router.delete("/v1/sandboxes/{sandbox_id}/sessions/{session_id}", tags=["commands"])
async def close_session(request: Request, sandbox_id: Id, session_id: str) -> Response:
    """End a shell and what it started."""
    await ask(request, sessions_of(request).close(sandbox_id, session_id))
    return JSONResponse({})


@router.post("/v1/sandboxes/{sandbox_id}/files", openapi_extra={"requestBody": TAR}, tags=["files"])
async def put(
    request: Request, sandbox_id: Id, folder: Inner, generation: Generation = 0, timeout_s: Timeout = 600.0
) -> Response:
    """Unpack the body, a tar archive of any length, into a folder, which is made."""

    async def stored(chunks: AsyncIterator[bytes]) -> None:
        it = await present(request, sandbox_id, generation)
        await it.put_archive(chunks, folder, timeout_s=timeout_s)

    async with aclosing(request.stream()) as chunks:  # it raises where the client leaves
        await while_connected(request.scope, never, take_body(chunks, stored), limit_s=timeout_s + GRACE_S)
    return JSONResponse({})


@router.get(
    "/v1/sandboxes/{sandbox_id}/files", responses={200: {**TAR, "description": "a tar archive"}}, tags=["files"]
)
async def get(it: Present, path: Inner, timeout_s: Timeout = 600.0) -> Response:
    """Return a file or folder as a tar archive, streamed. It breaks off where something goes wrong midway."""
    return Streamed(
        _chunks(it.get_archive(path, timeout_s=timeout_s)), media_type="application/x-tar", limit_s=timeout_s + GRACE_S
    )


@router.get("/v1/sandboxes/{sandbox_id}/content", tags=["files"])
async def read(
    request: Request,
    it: Present,
    path: Inner,
    max_bytes: Annotated[int, Query(ge=0, le=bodies.MAX_OUTPUT_BYTES)] = 16 * MIB,
) -> Response:
    """Return a file's bytes."""
    data = await ask(request, it.read(path, max_bytes=max_bytes))
    return Response(data, media_type="application/octet-stream")


def _command(body: bodies.Exec) -> dict[str, Any]:
    command = body.command if isinstance(body.command, str) else tuple(body.command)
    return {**dict(body), "command": command}


async def _chunks(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async with aclosing(pieces) as chunks:  # type: ignore[type-var]  # `get_archive` is a generator
        async for chunk in chunks:
            yield chunk


async def _lines(
    items: AsyncIterator[Output | ExecResult], *, has_started: bool = False
) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(items) as outputs:  # type: ignore[type-var]  # `stream` is a generator
            async for item in outputs:
                told = (
                    {"output": output_to_json(item)} if isinstance(item, Output) else {"result": result_to_json(item)}
                )
                yield json.dumps(told).encode() + b"\n"
                has_started = True
    except RollcageError as error:
        if not has_started:
            raise
        yield json.dumps({"error": error_to_json(error)}).encode() + b"\n"
