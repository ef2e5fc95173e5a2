"""The service's application: routes, page, and errors that tell what they are."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from rollcage.errors import RollcageError
from rollcage.sandbox.base import Sandboxes
from rollcage.sandbox.client.wire import error_to_json
from rollcage.sandbox.errors import BadRequest, BadSpec, InternalError
from rollcage.sandbox.service import commands, routes
from rollcage.sandbox.service.gate import Gate
from rollcage.sandbox.service.page import render
from rollcage.sandbox.service.sessions import Sessions


class Service:
    """The application and what it keeps; made inside a running event loop.

    Args:
        sandboxes: the manager; not closed here.
        token: what every request must show.
        is_local: see `Gate`.
    """

    def __init__(self, sandboxes: Sandboxes, token: str, *, is_local: bool = True) -> None:
        self._sessions = Sessions()
        app = FastAPI(
            title="Rollcage sandboxes",
            description="Every request shows the token: `Authorization: Bearer TOKEN`. Bytes in JSON are base64. An "
            'error is `{"error": {"type", "message", "attributes", "status"}}`.',
            version="1",
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            separate_input_output_schemas=False,
            responses={"default": {"description": "an error, typed"}},
        )
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        app.state.sandboxes, app.state.sessions, app.state.stopping = sandboxes, self._sessions, self._stopping
        _add_errors(app)
        _add_page(app)
        app.include_router(routes.router)
        app.include_router(commands.router)
        self.app = Gate(app, token, is_local=is_local)

    def stop(self) -> None:
        """End the calls that run; their clients are told."""
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def close(self) -> None:
        """Close the shells that clients left open."""
        await self._sessions.close_all()


def _add_page(app: FastAPI) -> None:
    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> Response:
        policy = "default-src 'none'; style-src 'unsafe-inline'"
        return HTMLResponse(render(app.openapi()), headers={"content-security-policy": policy})


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RollcageError)
    async def known(request: Request, error: RollcageError) -> Response:
        return _error(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        faults = [(".".join(str(part) for part in fault["loc"][1:]), fault["msg"]) for fault in error.errors()]
        told = "; ".join(f"{where or 'body'}: {what}" for where, what in faults[:5])
        kind = BadSpec if faults[0][0].startswith("spec") else BadRequest
        return _error(kind(f"{told}."), status=422)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        told = f"{request.method} {request.url.path}: {error.detail}"
        return _error(BadRequest(told), status=error.status_code)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> Response:  # the traceback goes to the log
        return _error(InternalError(f"the service failed ({type(error).__name__}); its log says more."))


def _error(error: RollcageError, *, status: int | None = None) -> JSONResponse:
    told = error_to_json(error)
    told["status"] = status or told["status"]
    return JSONResponse({"error": told}, status_code=told["status"])
