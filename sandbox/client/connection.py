"""The client's HTTP: deadlines, retries of what may be repeated, and errors as what they were in the service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from rollcage.errors import require
from rollcage.sandbox.client.address import ServiceAddress, read_address
from rollcage.sandbox.client.wire import Json, error_from_json
from rollcage.sandbox.errors import BadSpec, DeadlineExceeded, ServiceUnreachable

require("aiohttp", "sandbox")
import aiohttp  # noqa: E402
from yarl import URL  # noqa: E402

RETRY_S = 10.0
"""What may be repeated is tried again for so long: longer than a restart of the service takes."""
FIRST_PAUSE_S, MAX_PAUSE_S, PAUSE_GROWTH = 0.1, 1.0, 1.6


class Connection:
    """HTTP to one service.

    Args:
        service: where it is.
        again: asked where it does not answer or refuses the token: where it is now (it may have been started anew).
    """

    def __init__(self, service: ServiceAddress, again: Callable[[], ServiceAddress | None] = lambda: None) -> None:
        scheme, _, rest = service.address.partition("://")
        if scheme not in ("http", "unix") or not rest:
            raise BadSpec(f"service address {service.address!r}: write http://HOST:PORT or unix:///PATH.")
        self._service, self._again = service, again
        self._http: aiohttp.ClientSession | None = None
        self._is_closed = False

    @property
    def address(self) -> str:
        """Where the service is."""
        return self._service.address

    async def ask(
        self,
        method: str,
        *path: str,
        limit_s: float,
        query: Mapping[str, Any] | None = None,
        body: Json | None = None,
        repeat: bool = False,
    ) -> Any:
        """Return the JSON of an answer; see `open`."""
        async with self.open(method, *path, limit_s=limit_s, query=query, body=body, repeat=repeat) as response:
            return await response.json()

    @asynccontextmanager
    async def open(
        self,
        method: str,
        *path: str,
        limit_s: float,
        query: Mapping[str, Any] | None = None,
        body: Json | None = None,
        data: AsyncIterator[bytes] | None = None,
        repeat: bool = False,
        at_leisure: bool = False,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Lend the answer to a request; leaving before its end breaks it off.

        Args:
            method, path, query: of the request; each part of the path is quoted.
            limit_s: for all of it.
            at_leisure: the answer is read at the caller's leisure: ``limit_s`` is for each wait for its next piece.
            body: JSON that is sent.
            data: bytes that are sent, streamed.
            repeat: it may be sent again where nobody knows whether it arrived: it is, for `RETRY_S` at most.

        Raises:
            SandboxError: the one that the service raised.
            ServiceUnreachable, Unauthorized, DeadlineExceeded: it raised none.
        """
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + limit_s
        url = "/v1/" + "/".join(_quoted(part) for part in path) + (f"?{urlencode(query)}" if query else "")
        pauses = _Pauses(ends_at_s)
        while True:
            asked = self._service
            try:
                sent = self._send(method, url, body, data, _timeout(ends_at_s - loop.time(), at_leisure))
                async with await sent as response:
                    if response.status == 401 and await self._is_elsewhere(asked):
                        if data is None:
                            continue
                        raise ServiceUnreachable(
                            f"the service at {asked.address} was started anew, and this was not done: try again."
                        )
                    if not (repeat and await _is_stopping(response)) or not pauses.are_left():
                        await _raise_error(response, self.address)
                        try:
                            yield response
                            return
                        except TimeoutError:  # aiohttp's own is a ClientError too
                            raise
                        except (aiohttp.ClientError, ConnectionError) as error:
                            told = f"the service at {self.address} went away midway: {error}."
                            raise ServiceUnreachable(told, may_have_happened=True) from None
            except TimeoutError:
                raise DeadlineExceeded(f"the service at {self.address} did not answer within {limit_s:g} s.") from None
            except (aiohttp.ClientError, ConnectionError) as error:
                was_sent = not isinstance(error, aiohttp.ClientConnectorError)
                is_there = not was_sent and data is None and await self._is_elsewhere(asked)
                if not is_there and not (repeat and pauses.are_left()):
                    raise self._unreachable(error, was_sent, method) from None
            await pauses.take()
            await self._is_elsewhere(asked)

    def _unreachable(self, error: BaseException, was_sent: bool, method: str) -> ServiceUnreachable:
        told = f"no sandbox service answers at {self.address} ({_reason(error)})"
        if was_sent and method != "GET":
            told = f"{told}, and nobody knows whether the call was carried out"
        return ServiceUnreachable(f"{told}: start one with  rollcage sandbox serve.", may_have_happened=was_sent)

    async def close(self) -> None:
        """Close all connections; idempotent."""
        self._is_closed = True
        if self._http is not None:
            await self._http.close()

    async def _send(
        self,
        method: str,
        url: str,
        body: Json | None,
        data: AsyncIterator[bytes] | None,
        timeout: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        if self._is_closed:
            raise ServiceUnreachable("this client is closed.")
        scheme, _, rest = self._service.address.partition("://")
        if self._http is None or self._http.closed:
            connector = aiohttp.UnixConnector(rest, limit=0) if scheme == "unix" else aiohttp.TCPConnector(limit=0)
            self._http = aiohttp.ClientSession(connector=connector, trust_env=False)
        headers = {"Authorization": f"Bearer {self._service.token}"}
        sent: bytes | AsyncIterator[bytes] | None = data
        if body is not None:
            headers["Content-Type"] = "application/json"
            sent = json.dumps(body).encode()
        return await self._http.request(
            method,
            URL(("http://sandbox" if scheme == "unix" else self._service.address) + url, encoded=True),
            data=sent,
            headers=headers,
            timeout=timeout,
            allow_redirects=False,
        )

    async def _is_elsewhere(self, asked: ServiceAddress) -> bool:
        """Look where the service is now; returns whether that is another one than was asked."""
        found = self._again()
        if found is None or found == asked:
            return False
        if found != self._service:  # else another call has found it
            self._service, stale, self._http = found, self._http, None
            if stale is not None:
                await stale.close()
        return True


class _Pauses:
    """The pauses between tries: they grow, and there are none after `RETRY_S` or the caller's deadline."""

    def __init__(self, ends_at_s: float) -> None:
        self._ends_at_s, self._pause_s = ends_at_s, FIRST_PAUSE_S
        self._is_first = True

    def are_left(self) -> bool:
        """Return whether there is time for one more try; the first question starts the clock."""
        now_s = asyncio.get_running_loop().time()
        if self._is_first:
            self._ends_at_s, self._is_first = min(self._ends_at_s, now_s + RETRY_S), False
        return now_s < self._ends_at_s

    async def take(self) -> None:
        """Wait."""
        left_s = self._ends_at_s - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, min(self._pause_s, left_s)))
        self._pause_s = min(self._pause_s * PAUSE_GROWTH, MAX_PAUSE_S)


def follow(folder: Path) -> Callable[[], ServiceAddress | None]:
    """Return what finds the service of a folder anew."""
    return lambda: read_address(folder)


def _timeout(limit_s: float, at_leisure: bool) -> aiohttp.ClientTimeout:
    limit_s = max(limit_s, 1e-3)
    if at_leisure:
        return aiohttp.ClientTimeout(sock_connect=limit_s, sock_read=limit_s)
    return aiohttp.ClientTimeout(total=limit_s)


async def _is_stopping(response: aiohttp.ClientResponse) -> bool:
    """Whether a service that ends has called the request off."""
    if response.status < 400:
        return False
    try:
        told: Any = await response.json(content_type=None)
        return bool(told["error"]["type"] == ServiceUnreachable.__name__)
    except (ValueError, TypeError, KeyError):
        return False


async def _raise_error(response: aiohttp.ClientResponse, address: str) -> None:
    if response.status < 400:
        return
    try:
        told = (await response.json(content_type=None))["error"]
        error = error_from_json(told)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ServiceUnreachable(
            f"{address} answered {response.status} {response.reason}: it is no sandbox service."
        ) from None
    raise error


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error.os_error.strerror or error.os_error)
    return str(error) or type(error).__name__


def _quoted(part: str) -> str:
    quoted = quote(part, safe="", errors="replace")
    return quoted.replace(".", "%2E") if part in (".", "..") else quoted
