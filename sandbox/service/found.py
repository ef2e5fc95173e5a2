"""What the routes of the service work on: the manager, the shells, and the sandbox that a request names."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path, Query, Request

from rollcage.sandbox.base import Sandbox, Sandboxes
from rollcage.sandbox.errors import SandboxNotFound, SandboxRestarted, SandboxUnavailable
from rollcage.sandbox.service.calls import while_connected
from rollcage.sandbox.service.sessions import Sessions
from rollcage.sandbox.types import State

CALL_LIMIT_S = 150.0
"""Longest time of a call that has no deadline of its own."""

T = TypeVar("T")
Id = Annotated[str, Path(description="a sandbox's id", max_length=200)]


def manager(request: Request) -> Sandboxes:
    """Return the manager that is served."""
    sandboxes: Sandboxes = request.app.state.sandboxes
    return sandboxes


def sessions_of(request: Request) -> Sessions:
    """Return the shells that clients keep open."""
    sessions: Sessions = request.app.state.sessions
    return sessions


async def ask(request: Request, call: Coroutine[Any, Any, T], limit_s: float = CALL_LIMIT_S) -> T:
    """Return what a call returns; it ends by its deadline, and when the client leaves."""
    return await while_connected(request.scope, request.receive, call, limit_s=limit_s)


Generation = Annotated[int, Query(ge=0, description="the life that the caller knows of; 0: any")]


async def known(request: Request, sandbox_id: Id, generation: Generation = 0) -> Sandbox:
    """Return the sandbox of a request; raises SandboxNotFound, or SandboxUnavailable where its caller once knew it."""
    try:
        return await manager(request).attach(sandbox_id)
    except SandboxNotFound:
        if not generation:
            raise
        raise SandboxUnavailable(f"sandbox {sandbox_id} is DELETED", state=State.DELETED) from None


async def present(request: Request, sandbox_id: Id, generation: Generation = 0) -> Sandbox:
    """Return the sandbox of a request; raises SandboxRestarted where its caller knows of an earlier life."""
    sandbox = await known(request, sandbox_id, generation)
    info = await sandbox.info()
    if generation and info.generation > generation:
        text = f"sandbox {sandbox_id} is in its life {info.generation}, no longer in {generation}: {info.message}"
        raise SandboxRestarted(text.rstrip(": "), generation=info.generation)
    return sandbox


Known = Annotated[Sandbox, Depends(known)]
"""The sandbox of a route, in whatever life."""
Present = Annotated[Sandbox, Depends(present)]
"""The same, in the life that the caller knows of: `SandboxRestarted` where there is a later one."""
