"""The server's application: routes, pages, and errors that say what is wrong in one line."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version
from importlib.resources.abc import Traversable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from rollcage.errors import RollcageError, UserError
from rollcage.monitor.live import has_prometheus
from rollcage.monitor.metrics.prometheus import PrometheusRecorder
from rollcage.monitor.server import control, log_routes, run_routes, sandbox_routes, stream
from rollcage.monitor.server.answers import Json
from rollcage.monitor.server.errors import Refused, to_json
from rollcage.monitor.server.gate import Gate
from rollcage.monitor.server.pages import Pages
from rollcage.monitor.server.runs import Runs
from rollcage.monitor.server.sandbox_routes import FindSandboxes


class Monitor:
    """The application and what it keeps; made inside a running event loop.

    Args:
        runs: what is shown; closed by `close`.
        token: what actions must show.
        reads_need_token: see `Gate`.
        is_local: see `Gate`.
        find_sandboxes: returns address and token of the sandbox service; None: sandboxes are not shown.
        pages: the folder of the pages; None: the ones of this package.
    """

    def __init__(
        self,
        runs: Runs,
        token: str,
        *,
        reads_need_token: bool = False,
        is_local: bool = True,
        find_sandboxes: FindSandboxes | None = None,
        pages: Traversable | None = None,
    ) -> None:
        self._runs = runs
        app = FastAPI(title="Rollcage monitor", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
        self._stopping = asyncio.Event()
        app.state.runs, app.state.find_sandboxes = runs, find_sandboxes
        app.state.stopping, app.state.num_streams = self._stopping, 0
        app.state.reads_need_token = reads_need_token
        _add_errors(app)
        _add_about(app)
        _add_metrics(app)
        for part in (control, sandbox_routes, stream, run_routes, log_routes):
            app.include_router(part.router)
        _add_pages(app, Pages(pages))
        self.app = Gate(app, token, reads_need_token=reads_need_token, is_local=is_local)

    def stop(self) -> None:
        """End the streams."""
        self._stopping.set()

    def close(self) -> None:
        """Close what is open; idempotent."""
        self._stopping.set()
        self._runs.close()


def _add_about(app: FastAPI) -> None:
    @app.get("/api")
    async def about(request: Request) -> Response:
        return Json(
            {
                "version": version("rollcage"),
                "runs_dir": str(app.state.runs.folder),
                "actions": request.state.knows_token,
                "needs_token": app.state.reads_need_token,
                "sandboxes": app.state.find_sandboxes is not None,
                "now": time.time(),
            }
        )


def _add_metrics(app: FastAPI) -> None:
    """The server's own: its process, and the disk that the runs are on. Each run has an endpoint for its metrics."""
    recorder = PrometheusRecorder(app.state.runs.folder) if has_prometheus() else None

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        if recorder is None:
            raise Refused("prometheus-client is not installed: pip install 'rollcage[monitor]'.", 503)
        body, kind = recorder.exposition(request.headers.get("accept", ""))
        return Response(body, headers={"content-type": kind})


def _add_pages(app: FastAPI, pages: Pages) -> None:
    @app.api_route("/{rest:path}", methods=["GET", "HEAD"])
    async def page(request: Request) -> Response:  # "/api/..." that is no route is no page either
        return pages.answer(request)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RollcageError)
    async def known(request: Request, error: RollcageError) -> Response:
        status = error.status if isinstance(error, Refused) else 422 if isinstance(error, UserError) else 500
        return Json(to_json(str(error), status, type(error).__name__), status_code=status)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        faults = [(".".join(str(part) for part in fault["loc"][1:]), fault["msg"]) for fault in error.errors()]
        told = "; ".join(f"{where or 'body'}: {what}" for where, what in faults[:5])
        return Json(to_json(f"{told}.", 400), status_code=400)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return Json(to_json(f"{request.method}: {error.detail}", error.status_code), status_code=error.status_code)

    @app.exception_handler(Exception)
    async def unknown(request: Request, error: Exception) -> Response:  # the traceback goes to the log
        told = f"the monitor failed ({type(error).__name__}); what it wrote to its terminal says more."
        return Json(to_json(told, 500), status_code=500)
