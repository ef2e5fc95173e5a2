"""Serving: where to listen, who may, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from urllib.parse import quote

import anyio.to_thread
import uvicorn

from rollcage.errors import UserError
from rollcage.monitor.server.app import Monitor
from rollcage.monitor.server.patience import PatientProtocol
from rollcage.monitor.server.runs import Runs
from rollcage.monitor.server.sandbox_routes import FindSandboxes

GRACE_S = 2.0
"""Running requests have so long when the server ends."""
MAX_CONNECTIONS = 500
NUM_THREADS = 64
"""Requests and streams that wait for a run's reader at the same time."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen, and what must be shown.

    Attributes:
        host, port: of TCP; port 0 is any free one.
        token: of the user's choice; "": one is made up, for actions only.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""


async def serve(
    folder: Path,
    listen: Listen,
    *,
    on_ready: Callable[[str], None],
    find_sandboxes: FindSandboxes | None = None,
    ended: asyncio.Event,
    pages: Traversable | None = None,
) -> None:
    """Serve until ``ended`` is set; where this is the main thread, SIGTERM and Ctrl-C set it.

    Args:
        folder: where the runs are.
        listen: where.
        on_ready: told the address, with the token behind ``#`` (which no browser sends), once it listens.
        find_sandboxes: see `Monitor`.
        ended: of the same event loop.
        pages: see `Monitor`.

    Raises:
        UserError: it may not or cannot listen there, or there is no such folder.
    """
    runs = Runs(folder)
    runs.ids()
    with contextlib.closing(_listener(listen)) as listener, _until_signal(ended):
        token = listen.token or secrets.token_urlsafe(24)
        is_local = _is_loopback(listener)
        monitor = Monitor(
            runs,
            token,
            reads_need_token=bool(listen.token),
            is_local=is_local,
            find_sandboxes=find_sandboxes,
            pages=pages,
        )
        server = _Server(
            uvicorn.Config(
                monitor.app,
                http=PatientProtocol,
                log_config=None,  # its warnings go where the program's own go
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=64 * 1024,
            )
        )
        anyio.to_thread.current_default_thread_limiter().total_tokens = NUM_THREADS
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        waiting = asyncio.create_task(ended.wait())
        try:
            on_ready(f"{_address(listener)}/#token={quote(token, safe='')}")
            await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            monitor.stop()
            server.should_exit = True
            waiting.cancel()
            await asyncio.wait({serving}, timeout=GRACE_S)
            for connection in list(server.server_state.connections):  # of readers that do not read
                connection.transport.abort()
            await asyncio.gather(serving, waiting, return_exceptions=True)
            monitor.close()
    if not serving.cancelled() and (failure := serving.exception()) is not None:
        raise failure


class Background:
    """The server in a thread of its own, beside something else, such as a run. ``with`` ends it.

    Args:
        folder, listen, find_sandboxes: see `serve`.

    Raises:
        UserError: it cannot listen there.
    """

    def __init__(self, folder: Path, listen: Listen, *, find_sandboxes: FindSandboxes | None = None) -> None:
        self.address = ""
        """With the token, once this object is there."""
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._thread = threading.Thread(
            target=self._run, args=(folder, listen, find_sandboxes), name="rollcage-monitor", daemon=True
        )
        self._thread.start()
        self._ready.wait(30)
        self._raise()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End it; idempotent."""
        if self._loop is not None and self._end is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(GRACE_S + 10)

    def _raise(self) -> None:
        if self._error is not None:
            self._thread.join()
            raise self._error

    def _run(self, folder: Path, listen: Listen, find_sandboxes: FindSandboxes | None) -> None:
        async def main() -> None:
            self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
            await serve(folder, listen, on_ready=ready, find_sandboxes=find_sandboxes, ended=self._end)

        def ready(address: str) -> None:
            self.address = address
            self._ready.set()

        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - told to the thread that waits for it
            self._error = error
        finally:
            self._ready.set()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `serve`."""
        yield


@contextlib.contextmanager
def _until_signal(ended: asyncio.Event) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _listener(listen: Listen) -> socket.socket:
    if not 0 <= listen.port <= 65535:
        raise UserError(f"port {listen.port}: must be between 0 and 65535.")
    try:
        [found, *_] = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UserError(f"cannot listen on {listen.host!r}: {error.strerror}.") from None
    family, _, _, _, where = found
    if not ipaddress.ip_address(where[0]).is_loopback and not listen.token:
        raise UserError(
            f"{listen.host} can be reached from other machines: give --token-file FILE with a token that every viewer "
            "must show, or use 127.0.0.1 and an SSH tunnel."
        )
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(512)
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on {listen.host} port {listen.port}: {error.strerror}.") from None
    return listener


def _is_loopback(listener: socket.socket) -> bool:
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    reachable = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
