"""The routes of a run's processes: where each is, and the end of what it wrote."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from rollcage.errors import UserError
from rollcage.monitor.server.answers import Json
from rollcage.monitor.server.errors import Refused
from rollcage.monitor.server.runs import runs_of
from rollcage.monitor.store.logs import list_actors, read_tail

router = APIRouter(prefix="/api")
MOST_BYTES = 1 << 20


@router.get("/runs/{run_id:path}/actors")
def actors(request: Request, run_id: str) -> Response:
    """Return the run's actors and processes, each with its node and its log."""
    runs = runs_of(request)
    reader = runs.reader(run_id)
    return Json(runs.shared((run_id, "actors"), lambda: {"actors": list_actors(reader)}))


@router.get("/runs/{run_id:path}/logs/{file}")
def log(
    request: Request, run_id: str, file: str, max_bytes: Annotated[int, Query(ge=1, le=MOST_BYTES)] = 1 << 16
) -> Response:
    """Return the end of one log."""
    try:
        return Json(read_tail(runs_of(request).reader(run_id).path, file, max_bytes))
    except (UserError, FileNotFoundError):
        raise Refused("this run has no such log.", 404) from None
