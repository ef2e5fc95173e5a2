"""Serving: where to listen, the address file, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import secrets
import signal
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from rollcage.sandbox.base import Sandboxes
from rollcage.sandbox.client.address import ServiceAddress, remove_address, write_address
from rollcage.sandbox.errors import BadSpec
from rollcage.sandbox.service.app import Service
from rollcage.sandbox.service.connections import ServiceConnection

KEEP_ALIVE_S = 75
"""An idle connection is kept for so long: longer than clients keep theirs, so that none is closed under a request."""
LINGER_S = 1.0
"""So long clients have to read their last answers when the service ends."""
CANCEL_S = 10
"""Calls that do not end when they are told to are left after so long."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Where to listen.

    Attributes:
        host, port: of TCP; port 0 is any free one.
        unix_socket: instead of TCP; only its owner may connect.
        beyond_loopback: whether ``host`` may be reachable from other machines. What is sent is not encrypted.
    """

    host: str = "127.0.0.1"
    port: int = 0
    unix_socket: Path | None = None
    beyond_loopback: bool = False


async def serve(
    open_manager: Callable[[], Awaitable[Sandboxes]],
    folder: Path,
    listen: Listen,
    *,
    on_ready: Callable[[ServiceAddress], None] = lambda service: None,
    grace_s: float = 10.0,
) -> None:
    """Serve until SIGTERM or SIGINT: then no new calls, ``grace_s`` seconds for the running ones, and the manager ends.

    Sandboxes live on.

    Args:
        open_manager: starts the manager that is served.
        folder: the manager's; the address file is written there.
        listen: where.
        on_ready: told where it listens, once it does.
        grace_s: see above.

    Raises:
        BadSpec: it may not or cannot listen there.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.closing(_listener(listen)) as listener:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        try:
            async with _managed(open_manager) as sandboxes:
                if not ended.is_set():
                    await _run(sandboxes, folder, listen, listener, ended, on_ready, grace_s)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
            if listen.unix_socket is not None:
                listen.unix_socket.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def _managed(open_manager: Callable[[], Awaitable[Sandboxes]]) -> AsyncIterator[Sandboxes]:
    sandboxes = await open_manager()
    try:
        yield sandboxes
    finally:
        await sandboxes.close()


async def _run(
    sandboxes: Sandboxes,
    folder: Path,
    listen: Listen,
    listener: socket.socket,
    ended: asyncio.Event,
    on_ready: Callable[[ServiceAddress], None],
    grace_s: float,
) -> None:
    known = ServiceAddress(_address(listen, listener), secrets.token_urlsafe(32), os.getpid())
    service = Service(sandboxes, known.token, is_local=listen.unix_socket is None and not listen.beyond_loopback)
    server = _Server(
        uvicorn.Config(
            service.app,
            http=ServiceConnection,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=round(grace_s) + CANCEL_S,
        )
    )
    log = logging.getLogger("uvicorn.error")
    log.addFilter(_is_news)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    waiting = asyncio.create_task(ended.wait())
    try:
        write_address(folder, known)
        on_ready(known)
        await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        remove_address(folder, known)
        server.should_exit = True
        waiting.cancel()
        await asyncio.wait({serving}, timeout=grace_s)
        service.stop()
        await asyncio.wait({serving}, timeout=LINGER_S)
        for connection in list(server.server_state.connections):  # of clients that do not read what they are sent
            connection.transport.abort()
        await asyncio.gather(serving, waiting, return_exceptions=True)
        await service.close()
        log.removeFilter(_is_news)
    if not serving.cancelled() and (failure := serving.exception()) is not None:
        raise failure


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out of the log that a stream was broken off: its client is told, and it is meant where a service ends."""
    return "without completing response" not in record.msg and "timeout graceful shutdown" not in record.msg


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to `serve`: it has a manager to close."""
        yield


def _listener(listen: Listen) -> socket.socket:
    if listen.unix_socket is not None:
        return _unix_listener(listen.unix_socket)
    if listen.port > 65535:
        raise BadSpec(f"port {listen.port}: must be between 0 and 65535.")
    try:
        [found, *_] = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise BadSpec(f"cannot listen on {listen.host!r}: {error.strerror}.") from None
    family, _, _, _, where = found
    if not ipaddress.ip_address(where[0]).is_loopback and not listen.beyond_loopback:
        raise BadSpec(
            f"{listen.host} can be reached from other machines, and whoever has the token commands this one's"
            " containers: say --beyond-loopback if that is meant, or use 127.0.0.1 and an SSH tunnel."
        )
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # else asyncio leaves Nagle on
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise BadSpec(f"cannot listen on {listen.host} port {listen.port}: {error.strerror}.") from None
    return listener


def _unix_listener(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
                if other.connect_ex(str(path)) == 0:
                    raise BadSpec(f"somebody listens on {path} already.")
            path.unlink()  # left behind by a service that was killed
        umask = os.umask(0o177)
        try:
            listener.bind(str(path))
        finally:
            os.umask(umask)
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise BadSpec(f"cannot listen on {path}: {error.strerror or error}.") from None
    except BadSpec:
        listener.close()
        raise
    return listener


def _address(listen: Listen, listener: socket.socket) -> str:
    if listen.unix_socket is not None:
        return f"unix://{listen.unix_socket.absolute()}"
    host, port = listener.getsockname()[:2]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
