"""The routes of sandboxes: as a client of their service, which knows nothing of this server."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Body, Query, Request
from starlette.responses import Response

from rollcage.monitor.server.answers import Json
from rollcage.monitor.server.asking import Address, ask
from rollcage.monitor.server.errors import Refused
from rollcage.monitor.store.secrets import masked

FindSandboxes = Callable[[], tuple[str, str] | None]
"""Returns address and token of the sandbox service that runs now, or None."""

router = APIRouter(prefix="/api/sandboxes")
After = Annotated[int, Query(ge=0, le=10**15)]
_FROM_SPEC = ("image", "cpus", "restart", "probe", "max_restarts")


@router.get("")
async def fleet(request: Request) -> Response:
    """Return all hosts and sandboxes, and how many there are by host and state."""
    service = _service(request)
    hosts, found = await asyncio.gather(ask(service, "GET", "/v1/hosts"), ask(service, "GET", "/v1/sandboxes"))
    by_host: dict[str, Counter[str]] = {host["name"]: Counter() for host in hosts}
    for it in found:
        by_host.setdefault(it["host"] or "(waiting)", Counter())[it["state"]] += 1
    return Json(
        {
            "address": service.address,
            "hosts": hosts,
            "sandboxes": [_brief(it) for it in found],
            "by_host": by_host,
            "by_state": Counter(it["state"] for it in found),
        }
    )


@router.get("/events")
async def all_events(request: Request, after: After = 0) -> Response:
    """Return events of all sandboxes above a number, oldest first."""
    return Json({"events": masked(await ask(_service(request), "GET", f"/v1/events?after={after}"))})


@router.get("/{sandbox_id}")
async def one(request: Request, sandbox_id: str) -> Response:
    """Return one sandbox with its events; those of its health apart."""
    service, path = _service(request), _path(sandbox_id)
    info, events = await asyncio.gather(ask(service, "GET", path), ask(service, "GET", f"{path}/events"))
    probes = [event for event in events if event["kind"] in ("probe", "unhealthy", "healthy", "vitals", "died", "oom")]
    spec = info["spec"]
    whole = {name: spec.get(name) for name in ("env", "workdir", "user", "labels", "network", "num_pids", "ttl_s")}
    return Json({"sandbox": {**_brief(info), **masked(whole)}, "events": masked(events), "probes": probes})


@router.get("/{sandbox_id}/events")
async def events(request: Request, sandbox_id: str, after: After = 0) -> Response:
    """Return the events of one sandbox, also of one that is gone."""
    return Json({"events": masked(await ask(_service(request), "GET", f"{_path(sandbox_id)}/events?after={after}"))})


@router.get("/{sandbox_id}/logs")
async def logs(request: Request, sandbox_id: str, num_lines: Annotated[int, Query(ge=1, le=5000)] = 200) -> Response:
    """Return the last lines that its main process wrote."""
    return Json({"text": await ask(_service(request), "GET", f"{_path(sandbox_id)}/logs?num_lines={num_lines}")})


@router.post("/hosts/{host}/drain")
async def drain(request: Request, host: str, on: Annotated[bool, Body(embed=True)] = True) -> Response:
    """Give a host no new sandboxes, or again."""
    return Json(await ask(_service(request), "POST", f"/v1/hosts/{_quoted(host)}/drain", {"on": on}))


@router.post("/{sandbox_id}/restart")
async def restart(request: Request, sandbox_id: str) -> Response:
    """Start a new life: from the last snapshot, else from the image."""
    info = await ask(_service(request), "POST", f"{_path(sandbox_id)}/restart", {}, limit_s=150.0)
    return Json({"sandbox": _brief(info)})


@router.post("/{sandbox_id}/delete")
async def delete(request: Request, sandbox_id: str) -> Response:
    """End a sandbox and remove all of it but its events."""
    return Json(await ask(_service(request), "DELETE", _path(sandbox_id), limit_s=150.0))


def _service(request: Request) -> Address:
    find: FindSandboxes | None = request.app.state.find_sandboxes
    found = find() if find is not None else None
    if found is None:
        raise Refused("no sandbox service runs: start one with  rollcage sandbox serve.", 502)
    return Address(found[0].rstrip("/"), found[1], "the sandbox service")


def _path(sandbox_id: str) -> str:
    return f"/v1/sandboxes/{_quoted(sandbox_id)}"


def _quoted(part: str) -> str:
    quoted = quote(part, safe="", errors="replace")
    return quoted.replace(".", "%2E") if part in (".", "..") else quoted


def _brief(info: Mapping[str, Any]) -> dict[str, Any]:
    spec = info["spec"]
    brief = {key: value for key, value in info.items() if key != "spec"}
    return brief | {name: spec.get(name) for name in _FROM_SPEC} | {"memory_limit_bytes": spec.get("memory_bytes")}
