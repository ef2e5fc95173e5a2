"""The endpoint of a long-running command: ``GET /metrics`` for Prometheus, ``POST /actions/NAME`` for its dashboard.

Standard library only, on threads of its own, so that it answers whatever the command is busy with. On the loopback it
answers to this machine's names alone and tells metrics to anyone; anywhere else everything needs the token. Actions
always do. ``control.json`` (mode 0600) says where it is, and the token, for as long as it is there.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from rollcage.errors import RollcageError, UserError

MAX_BODY_BYTES = 64 * 1024
MAX_CONNECTIONS = 32
"""Later ones are turned away."""
TIMEOUT_S = 10.0
"""Longest wait for a client, at every read and write."""
REQUEST_S = 30.0
"""Longest time that a request may take altogether."""
CONTROL = "control.json"

Action = Callable[[Mapping[str, Any]], Any]
"""Called in a thread of the endpoint with the request's JSON object; returns what is answered, as JSON."""


class Endpoint:
    """Serves from `start` to `close`.

    Args:
        exposition: (Accept header) -> (body, content type) of ``/metrics``; None where nothing measures.
        actions: what may be asked for, by name.
        host, port: where to listen; port 0 is any free one.
        token: what must be shown as ``Authorization: Bearer TOKEN``; a new one where empty.
        folder: gets ``control.json``; None for none.
    """

    def __init__(
        self,
        exposition: Callable[[str], tuple[bytes, str]] | None,
        *,
        actions: Mapping[str, Action] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        folder: Path | None = None,
    ) -> None:
        self.exposition, self.actions = exposition, dict(actions or {})
        self.token = token or secrets.token_urlsafe(32)
        self.is_local = _is_loopback(host)
        self._host, self._port, self._folder = host, port, folder
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """``http://HOST:PORT`` while it serves."""
        assert self._server is not None, "not started"
        host, port = self._server.server_address[:2]
        text = str(host)
        return f"http://[{text}]:{port}" if ":" in text else f"http://{text}:{port}"

    def start(self) -> Endpoint:
        """Listen and serve.

        Raises:
            UserError: it cannot listen there.
        """
        try:
            self._server = _Server(self, self._host, self._port)
        except OSError as error:
            raise UserError(
                f"metrics: cannot listen on {self._host} port {self._port} ({error.strerror or error}); "
                "choose another port, or 0 for any free one."
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="metrics endpoint"
        )
        self._thread.start()
        if self._folder is not None:
            _write_private(self._folder / CONTROL, {"address": self.address, "token": self.token, "pid": os.getpid()})
        return self

    def close(self) -> None:
        """Stop; open connections are cut. Idempotent."""
        server, thread, self._server, self._thread = self._server, self._thread, None, None
        if server is None or thread is None:
            return
        if self._folder is not None:
            _remove_own(self._folder / CONTROL, self.token)
        server.shutdown()
        thread.join()
        server.cut_connections()
        server.server_close()

    def __enter__(self) -> Endpoint:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True
    request_queue_size = 64

    def __init__(self, endpoint: Endpoint, host: str, port: int) -> None:
        self.endpoint = endpoint
        self._connections: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(MAX_CONNECTIONS)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's looks up this host's name, for as long as a name server likes
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._lock:
            self._connections[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._connections.pop(request, None)
            self._places.release()

    def service_actions(self) -> None:
        self.cut_connections(older_than_s=REQUEST_S)

    def cut_connections(self, older_than_s: float = -1.0) -> None:
        now_s = time.monotonic()
        with self._lock:
            for connection, since_s in self._connections.items():
                if now_s - since_s > older_than_s:
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left or was cut is nothing to tell of."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = TIMEOUT_S
    protocol_version = "HTTP/1.0"  # one request a connection
    server_version, sys_version = "rollcage", ""

    def do_GET(self) -> None:
        endpoint = self.server.endpoint
        if not self._may(needs_token=not endpoint.is_local):
            return
        path = self.path.partition("?")[0]
        if path != "/metrics":
            self._refuse(404, "there is /metrics, and POST /actions/NAME.")
        elif endpoint.exposition is None:
            self._refuse(503, "nothing measures here: install rollcage[monitor].")
        else:
            body, content_type = endpoint.exposition(self.headers.get("Accept", ""))
            self._answer(200, body, content_type)

    def do_POST(self) -> None:
        endpoint = self.server.endpoint
        if not self._may(needs_token=True):
            return
        name = self.path.partition("?")[0].removeprefix("/actions/")
        action = endpoint.actions.get(name)
        if action is None:
            known = ", ".join(endpoint.actions) or "none"
            self._refuse(404, f"there is no action {name[:80]!r} (known: {known}).")
            return
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdigit()) or "Transfer-Encoding" in self.headers:
            self._refuse(411, "say how long the body is (Content-Length).")
        elif int(length) > MAX_BODY_BYTES:
            self._refuse(413, f"the body is too large: {MAX_BODY_BYTES:,} bytes at most.")
        else:
            self._act(name, action, self.rfile.read(int(length)))

    def _act(self, name: str, action: Action, body: bytes) -> None:
        try:
            arguments = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            self._refuse(400, "the body must be a JSON object.")
            return
        try:
            told = action(arguments)
        except UserError as error:
            self._refuse(400, str(error))
        except RollcageError as error:
            self._refuse(409, str(error))
        except Exception as error:  # noqa: BLE001  (the boundary to the client: it is told, the command goes on)
            self._refuse(500, f"{name} failed: {type(error).__name__}: {error}")
        else:
            self._answer(200, json.dumps({"ok": True} if told is None else told).encode(), "application/json")

    def _may(self, *, needs_token: bool) -> bool:
        endpoint = self.server.endpoint
        host = self.headers.get("Host", "")
        if endpoint.is_local and not _is_this_machine(host):
            # A page of elsewhere can let its own name mean 127.0.0.1: then a browser asks with that name.
            self._refuse(
                421, f"this is not {host[:80]!r}: it listens on this machine alone, as 127.0.0.1 or localhost."
            )
            return False
        scheme, _, shown = self.headers.get("Authorization", "").partition(" ")
        given = shown.strip().encode("utf-8", "replace")
        if needs_token and not (scheme.lower() == "bearer" and hmac.compare_digest(given, endpoint.token.encode())):
            self._refuse(401, "the token is missing or wrong: send  Authorization: Bearer TOKEN.")
            return False
        return True

    def _refuse(self, status: int, message: str) -> None:
        self._answer(status, json.dumps({"error": {"message": message}}).encode(), "application/json")

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged."""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_this_machine(host: str) -> bool:
    """Whether a Host header names this machine's loopback; an absent one is no browser's."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name == "" or _is_loopback(name.strip("[]"))


def _write_private(path: Path, content: Mapping[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file)
    part.replace(path)


def _remove_own(path: Path, token: str) -> None:
    """Remove it unless it is another's already."""
    try:
        if json.loads(path.read_text(encoding="utf-8"))["token"] == token:
            path.unlink()
    except (OSError, ValueError, KeyError, TypeError):
        pass
