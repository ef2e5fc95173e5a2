"""Acting on a run: as a client of the run's own endpoint, whose address and token are in its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import quote, urlsplit

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from rollcage.monitor.server.answers import Json
from rollcage.monitor.server.asking import Address, ask
from rollcage.monitor.server.errors import Refused
from rollcage.monitor.server.gate import is_this_machine
from rollcage.monitor.server.runs import runs_of

ACTIONS = ("pause", "resume")
"""What can be done to a run."""

router = APIRouter(prefix="/api")


@router.post("/runs/{run_id:path}/actions/{name}")
async def act(request: Request, run_id: str, name: str) -> Response:
    """Ask a run to do something."""
    if name not in ACTIONS:
        raise Refused(f"there is no action {name!r}; there are {', '.join(ACTIONS)}.", 404)
    reader = await run_in_threadpool(runs_of(request).reader, run_id)
    status = await run_in_threadpool(reader.status)
    if status["state"] not in ("running", "paused"):
        raise Refused(f"the run is {status['state']}: only one that runs can be told to {name}.", 409)
    endpoint = control_of(reader.path)
    if endpoint is None:
        raise Refused("the run does not say where it can be reached (control.json in its folder).", 409)
    return Json(await ask(endpoint, "POST", f"/actions/{quote(name, safe='')}", {}))


def control_of(folder: Path) -> Address | None:
    """Return a run's endpoint from its ``control.json``, or None where it says none.

    A file that another user could have written is not believed, nor is an address on another machine: the run's own
    token is sent there.
    """
    path = folder / "control.json"
    try:
        with path.open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_uid not in (os.geteuid(), 0):
                return None
            told = json.loads(file.read(10_000))
        address, token = str(told["address"]), str(told["token"])
        parts = urlsplit(address)
        is_near = parts.scheme == "http" and is_this_machine(parts.netloc)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Address(address.rstrip("/"), token, "the run") if is_near else None
