"""The gate in front of every route: a token, and bounds on what a request may carry."""

from __future__ import annotations

import asyncio
import base64
import hmac
import ipaddress
import json
import re

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rollcage.sandbox.client.wire import error_to_json
from rollcage.sandbox.errors import BadRequest, SandboxError, Unauthorized
from rollcage.sandbox.types import MIB

MAX_BODY_BYTES = 48 * MIB
"""Of a JSON body: 32 MiB of standard input as base64, and some."""
PIECE_TIMEOUT_S = 30.0
"""Longest wait for the next piece of a body."""
PIPE = "/pipe"
"""A body that is talked through while a command runs: its pieces come whenever the client has something to say."""
STREAMED = ("/files", PIPE)
"""Bodies without a bound: nobody keeps them."""
PAGES = ("/", "/openapi.json")
"""What a browser may read with the token as password: only these, since a browser sends it along unasked."""


class Gate:
    """ASGI middleware.

    Args:
        app: the service.
        token: what every request must show, as ``Authorization: Bearer TOKEN``.
        max_body_bytes: most bytes of a body; archives, which are streamed, have no bound.
        piece_timeout_s: longest wait for a piece of a body.
        is_local: only this machine is listened to. Then a request to any other name is none of its users': a page of
            elsewhere lets its own name mean 127.0.0.1, so that a browser takes the service for a part of it.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        piece_timeout_s: float = PIECE_TIMEOUT_S,
        is_local: bool = True,
    ) -> None:
        self._app, self._token, self._is_local = app, token.encode(), is_local
        self._max_body_bytes, self._piece_timeout_s = max_body_bytes, piece_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            return  # neither WebSockets nor anything else is served: uvicorn refuses them where nobody accepts
        headers = dict(scope["headers"])
        if self._is_local and not is_this_machine(host := headers.get(b"host", b"").decode("latin-1")):
            told = f"this service is not {host!r}: it listens on this machine alone, as 127.0.0.1 or localhost."
            await _refuse(send, BadRequest(told), status=421)
            return
        if not self._knows_token(scope, headers.get(b"authorization", b"")):
            await _refuse(send, Unauthorized("the token is missing or wrong: send  Authorization: Bearer TOKEN."))
            return
        limit = None if scope["method"] == "POST" and scope["path"].endswith(STREAMED) else self._max_body_bytes
        announced = headers.get(b"content-length", b"0")
        if limit is not None and announced.isdigit() and int(announced) > limit:
            await _refuse(send, BadRequest(f"the body is too large: {limit:,} bytes at most."), status=413)
            return
        is_pipe = limit is None and scope["path"].endswith(PIPE)
        await self._app(scope, receive if is_pipe else self._bounded(receive, limit), send)

    def _knows_token(self, scope: Scope, authorization: bytes) -> bool:
        scheme, _, shown = authorization.partition(b" ")
        if scheme.lower() == b"basic" and scope["method"] == "GET" and scope["path"] in PAGES:
            try:
                shown = base64.b64decode(shown, validate=True).partition(b":")[2]
            except ValueError:
                return False
        elif scheme.lower() != b"bearer":
            return False
        return hmac.compare_digest(shown.strip(), self._token)

    def _bounded(self, receive: Receive, limit: int | None) -> Receive:
        num_bytes, complete = 0, False

        async def bounded() -> Message:
            nonlocal num_bytes, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout(self._piece_timeout_s):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"no more of the body came within {self._piece_timeout_s:g} s.") from None
            num_bytes += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if limit is not None and num_bytes > limit:
                raise HTTPException(413, f"the body is too large: {limit:,} bytes at most.")
            return message

        return bounded


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


async def _refuse(send: Send, error: SandboxError, *, status: int | None = None) -> None:
    told = error_to_json(error)
    body = json.dumps({"error": told}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b'Basic realm="rollcage sandbox: any user, the token as password"'))
    await send({"type": "http.response.start", "status": status or told["status"], "headers": headers})
    await send({"type": "http.response.body", "body": body})
