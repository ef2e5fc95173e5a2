"""HTTP as a client, to this machine's own services: a run's endpoint and the sandbox service. Standard library only."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rollcage.monitor.server.errors import Refused

MAX_ANSWER_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Address:
    """Where a service is, and what it wants to be shown.

    Attributes:
        address: "http://HOST:PORT" or "unix:///PATH".
        token: shown as ``Authorization: Bearer TOKEN``.
        name: what it is to people, such as "the sandbox service".
    """

    address: str
    token: str
    name: str


async def ask(
    service: Address, method: str, path: str, body: Mapping[str, Any] | None = None, *, limit_s: float = 20.0
) -> Any:
    """Return the JSON of an answer; redirects are not followed.

    Args:
        service: whom to ask.
        method, path: of the request; the path with its query, quoted.
        body: JSON that is sent.
        limit_s: for each wait.

    Raises:
        Refused: it does not answer (502), or refuses: with its own words and status.
    """
    return await asyncio.to_thread(_ask, service, method, path, body, limit_s)


def _ask(service: Address, method: str, path: str, body: Mapping[str, Any] | None, limit_s: float) -> Any:
    connection = _connection(service, limit_s)
    headers = {"Authorization": f"Bearer {service.token}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        answer = connection.getresponse()
        text = answer.read(MAX_ANSWER_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
        raise Refused(f"{service.name} at {service.address} does not answer ({reason}).", 502) from None
    finally:
        connection.close()
    try:
        if len(text) > MAX_ANSWER_BYTES:
            raise ValueError
        told = json.loads(text)
    except ValueError:
        raise Refused(f"{service.name} at {service.address} answered {answer.status} and no JSON.", 502) from None
    if answer.status >= 400:
        fault = told.get("error", told) if isinstance(told, dict) else told
        message = fault.get("message", fault) if isinstance(fault, dict) else fault
        # That service's own token was not taken: for the browser that is no 401 of ours.
        raise Refused(f"{service.name}: {message}", 502 if answer.status == 401 else answer.status)
    return told


def _connection(service: Address, limit_s: float) -> http.client.HTTPConnection:
    if service.address.startswith("unix://"):
        return _UnixConnection(service.address.removeprefix("unix://"), limit_s)
    parts = urlsplit(service.address)
    if parts.scheme != "http" or not parts.hostname:
        raise Refused(f"{service.name} has an address that is none: {service.address!r}.", 502)
    return http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=limit_s)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
