"""The gate in front of every route: the Host, the token, bounds on a request, and the headers that bind a browser."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollcage.monitor.server.errors import to_json

MAX_BODY_BYTES = 64 * 1024
"""Of a request: actions say little."""
MAX_URL_BYTES = 16 * 1024
"""Of path and query: twenty metric names of fifty runs."""
BODY_TIMEOUT_S = 10.0
"""Longest wait for the next piece of a body."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing that a model wrote can run, even where a page should fail to escape it."""
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Gate:
    """ASGI middleware.

    A token is only ever taken from the ``Authorization`` header, which no page of elsewhere can make a browser send.

    Args:
        app: the server.
        token: what an action must show.
        reads_need_token: whether what only looks must show it too.
        is_local: only this machine is listened to. Then a request to any other name is none of its users': a page of
            elsewhere lets its own name mean 127.0.0.1, so that a browser takes the server for a part of it.
    """

    def __init__(self, app: ASGIApp, token: str, *, reads_need_token: bool = False, is_local: bool = True) -> None:
        self._app, self._token = app, token.encode()
        self._reads_need_token, self._is_local = reads_need_token, is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            return  # neither WebSockets nor anything else is served
        headers = dict(scope["headers"])
        sends = _with_headers(send, is_api=scope["path"].startswith("/api"))
        known = self._knows_token(headers.get(b"authorization", b""))
        scope.setdefault("state", {})["knows_token"] = known
        if refusal := self._refusal(scope, headers, known):
            await _refuse(sends, *refusal)
            return
        await self._app(scope, _bounded(receive), sends)

    def _refusal(self, scope: Scope, headers: dict[bytes, bytes], known: bool) -> tuple[int, str] | None:
        if self._is_local and not is_this_machine(host := headers.get(b"host", b"").decode("latin-1")):
            return 421, f"this monitor is not {host!r}: it listens on this machine alone, as 127.0.0.1 or localhost."
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_URL_BYTES:
            return 414, f"the address is too long: {MAX_URL_BYTES:,} bytes at most."
        announced = headers.get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > MAX_BODY_BYTES:
            return 413, f"the body is too large: {MAX_BODY_BYTES:,} bytes at most."
        acts = scope["method"] not in ("GET", "HEAD")
        if (acts or self._reads_need_token) and (acts or scope["path"].startswith(("/api", "/metrics"))) and not known:
            return 401, "the token is missing or wrong: open the address that `rollcage monitor` printed."
        if acts and headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            return 415, "an action is sent as application/json."
        origin = headers.get(b"origin", b"")
        if acts and origin and origin.partition(b"://")[2] != headers.get(b"host", b""):
            return 403, "an action is taken from the monitor's own pages, not from those of another address."
        return None

    def _knows_token(self, authorization: bytes) -> bool:
        scheme, _, shown = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(shown.strip(), self._token)


def is_this_machine(host: str) -> bool:
    """Return whether a ``Host`` header names this machine, or nothing.

    >>> [is_this_machine(it) for it in ("127.0.0.1:80", "localhost", "[::1]:80", "", "example.com", "10.0.0.1")]
    [True, True, True, True, False, False]
    """
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
    name = name.strip("[]").rstrip(".").lower()
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name in ("", "localhost") or name.endswith(".localhost")


def _bounded(receive: Receive) -> Receive:
    num_bytes, complete = 0, False

    async def bounded() -> Message:
        nonlocal num_bytes, complete
        if complete:
            return await receive()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"no more of the body came within {BODY_TIMEOUT_S:g} s.") from None
        num_bytes += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if num_bytes > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body is too large: {MAX_BODY_BYTES:,} bytes at most.")
        return message

    return bounded


def _with_headers(send: Send, *, is_api: bool) -> Send:
    async def sends(message: Message) -> None:
        if message["type"] == "http.response.start":
            cache = (b"cache-control", b"no-store" if is_api else b"no-cache")
            message = {**message, "headers": [*message.get("headers", ()), *HEADERS, cache]}
        await send(message)

    return sends


async def _refuse(send: Send, status: int, message: str) -> None:
    body = json.dumps(to_json(message, status)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
