"""Server-sent events: what changes in a run, at most twice a second, with a bounded backlog for slow readers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from rollcage.monitor.server.answers import dumped
from rollcage.monitor.server.errors import Refused
from rollcage.monitor.server.run_routes import summaries
from rollcage.monitor.server.runs import Runs, runs_of
from rollcage.monitor.server.summary import summary
from rollcage.monitor.store import RunReader
from rollcage.monitor.store.secrets import masked

PERIOD_S = 0.5
"""Between two messages at least."""
PING_S = 10.0
"""So often a line is sent where nothing changes: a reader that is gone is noticed."""
MAX_ROWS = 50
"""Of each kind in one message; the pages fetch the rest where they need it."""
MAX_STREAMS = 200
"""Readers at once."""
MAX_READ = 100
"""Rows of each kind that are read for one message. Where more have come they are passed over: a run that writes faster
than that is followed by what its pages fetch."""

router = APIRouter(prefix="/api")


@router.get("/stream")
async def stream(request: Request, run: str | None = None) -> StreamingResponse:
    """Tell of changes of one run, or of the list of runs."""
    runs, state = runs_of(request), request.app.state
    if state.num_streams >= MAX_STREAMS:
        raise Refused("too many pages are open: close some.", 503)
    if run is not None:
        await run_in_threadpool(runs.reader, run)  # an unknown run is refused before anything is sent
    changes = _of_run(runs, run) if run is not None else _of_list(runs)
    return StreamingResponse(_counted(changes, state), media_type="text/event-stream")


async def _counted(changes: AsyncGenerator[bytes, None], state: Any) -> AsyncGenerator[bytes, None]:
    """Pass on what comes; a message is asked for only when the one before was sent, so that nothing piles up."""
    state.num_streams += 1
    try:
        async with aclosing(changes) as messages:
            async for message in messages:
                if state.stopping.is_set():
                    return
                yield message
                try:
                    async with asyncio.timeout(PERIOD_S):
                        await state.stopping.wait()
                        return
                except TimeoutError:
                    pass
    finally:
        state.num_streams -= 1


async def _of_run(runs: Runs, run_id: str) -> AsyncGenerator[bytes, None]:
    """Yield a message, or b"" and pings where nothing has changed."""
    cursor: str | None = None
    last: bytes | None = None
    quiet_s = 0.0
    while True:
        reader = await run_in_threadpool(runs.reader, run_id)
        rows, cursor = await run_in_threadpool(_since, reader, cursor)
        key = (run_id, "summary")
        told = await run_in_threadpool(runs.shared, key, partial(summary, run_id, reader))
        changed = {name: len(found) for name, found in rows.items() if found}
        if changed or told != last:
            last, quiet_s = told, 0.0
            message = {
                "run": run_id,
                "status": json.loads(told),
                "changed": changed,
                "metrics": rows.get("metrics", [])[-MAX_ROWS:],
                "events": masked(rows.get("events", [])[-MAX_ROWS:]),
            }
            yield b"event: change\ndata: " + dumped(message) + b"\n\n"
        else:
            quiet_s += PERIOD_S
            yield b": ping\n\n" if quiet_s % PING_S < PERIOD_S else b""


def _since(reader: RunReader, cursor: str | None) -> tuple[dict[str, list[dict[str, Any]]], str]:
    rows, cursor = reader.follow(cursor, MAX_READ)
    if any(len(found) == MAX_READ for found in rows.values()):
        _, cursor = reader.follow(None)
    return rows, cursor


async def _of_list(runs: Runs) -> AsyncGenerator[bytes, None]:
    last: bytes | None = None
    quiet_s = 0.0
    while True:
        told = await run_in_threadpool(runs.shared, ("runs",), lambda: {"runs": summaries(runs)})
        if told != last:
            last, quiet_s = told, 0.0
            yield b"event: runs\ndata: " + told + b"\n\n"
        else:
            quiet_s += PERIOD_S
            yield b": ping\n\n" if quiet_s % PING_S < PERIOD_S else b""
