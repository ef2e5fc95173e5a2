"""Server-sent events: what changes in a run, at most twice a second, with a bounded backlog for slow readers."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

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
from rollcage.monitor.store.segments import Place

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
    told = changes = b""
    quiet_s = 0.0
    while True:
        reader = await run_in_threadpool(runs.reader, run_id)
        now = await run_in_threadpool(runs.shared, (run_id, "summary"), partial(summary, run_id, reader))
        last, changes = (
            changes,
            await run_in_threadpool(runs.shared, (run_id, "changes"), _followed(reader).read, fresh_s=PERIOD_S / 2),
        )
        new = changes if last not in (b"", changes) else NOTHING
        if new != NOTHING or now != told:
            told, quiet_s = now, 0.0
            head = b'{"run":' + dumped(run_id) + b',"status":' + told
            yield b"event: change\ndata: " + head + b"," + new[1:] + b"\n\n"
        else:
            quiet_s += PERIOD_S
            yield b": ping\n\n" if quiet_s % PING_S < PERIOD_S else b""


NOTHING = dumped({"changed": {}, "metrics": [], "events": []})


class _Followed:
    """What has changed in a run, read once for all who follow it."""

    def __init__(self, reader: RunReader) -> None:
        self._reader = weakref.ref(reader)
        self._lock = threading.Lock()
        self._cursor: str | None = None
        self._ends: dict[str, Place] = {}
        self._last = NOTHING

    def read(self) -> bytes:
        """Return what has changed since the last call; what the last call did, where nothing has.

        ``changed`` has the number of rows of metrics and events, and 1 for other streams that have grown.
        """
        reader = self._reader()
        if reader is None:
            return self._last
        with self._lock:
            rows, self._cursor = reader.follow(self._cursor, MAX_READ, streams=TOLD)
            if any(len(found) == MAX_READ for found in rows.values()):
                _, self._cursor = reader.follow(None, streams=TOLD)
            changed = {name: len(found) for name, found in rows.items() if found}
            ends = reader.ends()
            changed |= {name: 1 for name, end in ends.items() if name not in TOLD and self._ends.get(name, end) != end}
            self._ends = ends
            if changed:
                metrics, events = (rows[name][-MAX_ROWS:] for name in TOLD)
                self._last = dumped({"changed": changed, "metrics": metrics, "events": masked(events)})
            return self._last


TOLD = ("metrics", "events")
"""Streams whose rows are told; pages fetch those of others."""
_FOLLOWED: WeakKeyDictionary[RunReader, _Followed] = WeakKeyDictionary()


def _followed(reader: RunReader) -> _Followed:
    return _FOLLOWED.setdefault(reader, _Followed(reader))


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
