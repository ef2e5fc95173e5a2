"""The routes of `Sandboxes`, and those of `Sandbox` that look at one or change it as a whole."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from rollcage.sandbox.base import Sandboxes
from rollcage.sandbox.client.wire import to_json
from rollcage.sandbox.errors import SandboxNotFound
from rollcage.sandbox.service import bodies
from rollcage.sandbox.service.calls import GRACE_S
from rollcage.sandbox.service.found import Id, Known, Present, ask, manager, sessions_of
from rollcage.sandbox.types import Event, HostInfo, SandboxInfo, Snapshot

router = APIRouter()
After = Annotated[int, Query(ge=0, description="only events with a number above this one")]


@router.get("/v1/health", tags=["service"])
async def health(request: Request) -> Response:
    """Say whether sandboxes can be made: 200, or 503 where no host is open."""
    hosts = await ask(request, manager(request).hosts(), 10.0)
    is_open = any(host.condition == "open" for host in hosts)
    told = {"status": "ok" if is_open else "degraded", "hosts": {host.name: host.condition for host in hosts}}
    return JSONResponse(told, status_code=200 if is_open else 503)


@router.post("/v1/sandboxes", response_model=SandboxInfo, status_code=201, tags=["sandboxes"])
async def create(request: Request, body: bodies.Create) -> Response:
    """Return a ready sandbox; the same one for the same key."""

    async def created() -> SandboxInfo:
        it = await manager(request).create(body.spec, key=body.key, owner=body.owner, deadline_s=body.deadline_s)
        return await it.info()

    return JSONResponse(to_json(await ask(request, created(), body.deadline_s + GRACE_S)), status_code=201)


@router.get("/v1/sandboxes", response_model=list[SandboxInfo], tags=["sandboxes"])
async def list_sandboxes(request: Request, owner: str | None = None) -> Response:
    """Return the sandboxes that are not deleted, oldest first."""
    return JSONResponse([to_json(info) for info in await ask(request, manager(request).list_sandboxes(owner=owner))])


@router.get("/v1/hosts", response_model=list[HostInfo], tags=["service"])
async def hosts(request: Request) -> Response:
    """Return the Docker hosts."""
    return JSONResponse([to_json(host) for host in await ask(request, manager(request).hosts())])


@router.post("/v1/hosts/{host}/drain", tags=["service"])
async def drain(request: Request, host: str, body: bodies.Drain) -> Response:
    """Give a host no new sandboxes, or again."""
    await ask(request, manager(request).drain(host, on=body.on))
    return JSONResponse({})


@router.get("/v1/events", response_model=list[Event], tags=["service"])
async def events(request: Request, after: After = 0) -> Response:
    """Return all events above a number, oldest first, 1,000 at most."""
    return JSONResponse([to_json(event) for event in await ask(request, manager(request).events(after=after))])


@router.get("/v1/snapshots", response_model=list[Snapshot], tags=["service"])
async def snapshots(request: Request) -> Response:
    """Return the snapshots that are kept."""
    return JSONResponse([to_json(snapshot) for snapshot in await ask(request, manager(request).snapshots())])


@router.post("/v1/reap", response_model=list[str], tags=["service"])
async def reap(request: Request) -> Response:
    """Remove now the sandboxes whose lease has ended, and containers without a sandbox; returns names."""
    return JSONResponse(await ask(request, manager(request).reap()))


@router.post("/v1/images/prune", response_model=list[str], tags=["service"])
async def prune_images(request: Request) -> Response:
    """Remove now the snapshot images that nobody needs; returns their names."""
    return JSONResponse(await ask(request, manager(request).prune_images()))


@router.get("/v1/sandboxes/{sandbox_id}", response_model=SandboxInfo, tags=["sandbox"])
async def info(request: Request, it: Known) -> Response:
    """Return what the manager knows of a sandbox."""
    return JSONResponse(to_json(await ask(request, it.info())))


@router.delete("/v1/sandboxes/{sandbox_id}", tags=["sandbox"])
async def delete(request: Request, sandbox_id: Id, it: Known) -> Response:
    """End a sandbox and remove all of it but its events; nothing where that has been done."""

    async def deleted() -> None:
        await sessions_of(request).close_all(sandbox_id)
        await it.delete()

    await ask(request, deleted())
    return JSONResponse({})


@router.post("/v1/sandboxes/{sandbox_id}/snapshots", response_model=Snapshot, tags=["sandbox"])
async def snapshot(request: Request, it: Present) -> Response:
    """Save the file system."""
    return JSONResponse(to_json(await ask(request, it.snapshot())))


@router.post("/v1/sandboxes/{sandbox_id}/restore", response_model=SandboxInfo, tags=["sandbox"])
async def restore(request: Request, it: Present, body: bodies.Restore) -> Response:
    """Start a new life from a snapshot (the last one)."""
    await ask(request, it.restore(body.snapshot_id))
    return JSONResponse(to_json(await it.info()))


@router.post("/v1/sandboxes/{sandbox_id}/restart", response_model=SandboxInfo, tags=["sandbox"])
async def restart(request: Request, it: Present) -> Response:
    """Start a new life: from the last snapshot, else from the image."""
    await ask(request, it.restart())
    return JSONResponse(to_json(await it.info()))


@router.post("/v1/sandboxes/{sandbox_id}/fork", response_model=SandboxInfo, status_code=201, tags=["sandbox"])
async def fork(request: Request, it: Present, body: bodies.Fork) -> Response:
    """Return a new sandbox that starts from a snapshot (default: one made now)."""

    async def forked() -> SandboxInfo:
        return await (await it.fork(key=body.key, snapshot_id=body.snapshot_id)).info()

    return JSONResponse(to_json(await ask(request, forked())), status_code=201)


@router.post("/v1/sandboxes/{sandbox_id}/renew", tags=["sandbox"])
async def renew(request: Request, it: Known, body: bodies.Renew) -> Response:
    """Let it live so many seconds (default: the specification's) from now on."""
    await ask(request, it.renew(body.ttl_s))
    return JSONResponse({})


@router.post("/v1/sandboxes/{sandbox_id}/pause", tags=["sandbox"])
async def pause(request: Request, it: Known) -> Response:
    """Freeze all processes."""
    await ask(request, it.pause())
    return JSONResponse({})


@router.post("/v1/sandboxes/{sandbox_id}/resume", tags=["sandbox"])
async def resume(request: Request, it: Known) -> Response:
    """Go on after a pause."""
    await ask(request, it.resume())
    return JSONResponse({})


@router.get("/v1/sandboxes/{sandbox_id}/events", response_model=list[Event], tags=["sandbox"])
async def history(request: Request, sandbox_id: Id, after: After = 0) -> Response:
    """Return its events above a number, oldest first; also of one that has been deleted."""
    return JSONResponse([to_json(event) for event in await ask(request, _history(manager(request), sandbox_id, after))])


async def _history(sandboxes: Sandboxes, sandbox_id: str, after: int) -> list[Event]:
    try:
        return await (await sandboxes.attach(sandbox_id)).events(after=after)
    except SandboxNotFound:
        found: list[Event] = []
        seen = 0
        while page := await sandboxes.events(after=seen):
            found += [event for event in page if event.sandbox_id == sandbox_id]
            seen = page[-1].number
        if not found:
            raise
        return [event for event in found if event.number > after]


@router.get("/v1/sandboxes/{sandbox_id}/logs", response_model=str, tags=["sandbox"])
async def logs(request: Request, it: Known, num_lines: Annotated[int, Query(ge=0, le=100_000)] = 100) -> Response:
    """Return the last lines that its main process wrote."""
    return JSONResponse(await ask(request, it.logs(num_lines=num_lines)))
