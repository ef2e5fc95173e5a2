"""Requests to a service as any program could send them, well formed or not."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from rollcage.sandbox.client.address import ServiceAddress


async def request(
    service: ServiceAddress, method: str, path: str, *, token: str | None = None, **how: Any
) -> tuple[int, Any]:
    """Send one request; returns status and JSON (or text). ``token`` None is the right one, "" none."""
    shown = service.token if token is None else token
    headers = how.pop("headers", {}) | ({"Authorization": f"Bearer {shown}"} if shown else {})
    async with aiohttp.ClientSession() as http:
        async with http.request(method, service.address + path, headers=headers, **how) as response:
            text = await response.text()
            try:
                return response.status, json.loads(text)
            except ValueError:
                return response.status, text


async def raw(service: ServiceAddress, sent: bytes, *, timeout_s: float = 10.0) -> bytes:
    """Send bytes on a connection of their own; returns what comes back until it is closed."""
    host, _, port = service.address.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(sent)
        async with asyncio.timeout(timeout_s):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
