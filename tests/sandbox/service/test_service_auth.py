"""Who may ask the service for anything: only who has the token, and only from this machine unless asked otherwise."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from tests.sandbox.places import served
from tests.sandbox.service.raw_http import request

from rollcage.sandbox.client.address import ServiceAddress, read_address
from rollcage.sandbox.client.client import Client, connect
from rollcage.sandbox.drivers.fake import FakeDriver
from rollcage.sandbox.errors import BadSpec, ServiceUnreachable, Unauthorized
from rollcage.sandbox.manager.manager import Manager
from rollcage.sandbox.service.server import Listen


@contextlib.asynccontextmanager
async def service_in(folder: Path) -> AsyncIterator[ServiceAddress]:
    async with Manager({"here": FakeDriver()}, folder) as manager, served(manager, folder) as service:
        yield service


def with_service(folder: Path, test: Callable[[ServiceAddress], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60.0), service_in(folder) as service:
            await test(service)

    asyncio.run(main())


def test_every_route_needs_the_token(tmp_path: Path) -> None:
    async def test(service: ServiceAddress) -> None:
        _, document = await request(service, "GET", "/openapi.json")
        routes = [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]
        assert len(routes) > 25
        routes += [("GET", "/"), ("GET", "/openapi.json"), ("GET", "/nowhere"), ("GET", "/docs"), ("OPTIONS", "/")]
        for method, path in routes:
            for token in ("", "wrong", service.token[:-1], service.token + "x"):
                status, told = await request(service, method, re.sub(r"{\w+}", "x", path), token=token)
                assert (status, told["error"]["type"]) == (401, "Unauthorized"), (method, path)

    with_service(tmp_path, test)


def test_a_token_in_the_address_is_no_token(tmp_path: Path) -> None:
    async def test(service: ServiceAddress) -> None:
        for name in ("token", "access_token", "authorization"):
            status, _ = await request(service, "GET", f"/v1/sandboxes?{name}={service.token}", token="")
            assert status == 401
        basic = base64.b64encode(f"me:{service.token}".encode()).decode()
        headers = {"Authorization": f"Basic {basic}"}
        assert (await request(service, "GET", "/v1/sandboxes", token="", headers=headers))[0] == 401

    with_service(tmp_path, test)


def test_a_browser_reads_the_page_with_the_token_as_password(tmp_path: Path) -> None:
    async def test(service: ServiceAddress) -> None:
        for password, wanted in ((service.token, 200), ("wrong", 401)):
            headers = {"Authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}
            status, page = await request(service, "GET", "/", token="", headers=headers)
            assert status == wanted
        _, page = await request(service, "GET", "/")
        assert "/v1/sandboxes/{sandbox_id}/exec" in page
        assert "SandboxSpec" in page
        assert not re.search(r"<script|https?://|@import", page), "it works offline"

    with_service(tmp_path, test)


def test_the_document_says_what_goes_in_and_out(tmp_path: Path) -> None:
    async def test(service: ServiceAddress) -> None:
        _, document = await request(service, "GET", "/openapi.json")
        schemas = document["components"]["schemas"]
        assert {"SandboxSpec", "SandboxInfo", "ExecResult", "Exec", "Create", "Event", "HostInfo"} <= set(schemas)
        assert schemas["Exec"]["properties"]["stdin"]["format"] == "base64"
        assert all(it["description"] for methods in document["paths"].values() for it in methods.values())

    with_service(tmp_path, test)


def test_address_and_token_are_for_their_owner_alone_and_go_with_the_service(tmp_path: Path) -> None:
    folder = tmp_path / "state"

    async def test(service: ServiceAddress) -> None:
        file = folder / "service.json"
        assert file.stat().st_mode & 0o777 == 0o600
        assert read_address(folder) == service
        assert service.address.startswith("http://127.0.0.1:")
        assert len(service.token) >= 43
        assert json.loads(file.read_text())["token"] == service.token
        async with connect(folder) as client:
            assert await client.list_sandboxes() == []

    with_service(folder, test)
    assert read_address(folder) is None
    with pytest.raises(ServiceUnreachable, match="rollcage sandbox serve"):
        connect(folder)


def test_each_start_has_a_token_of_its_own(tmp_path: Path) -> None:
    tokens = []

    async def test(service: ServiceAddress) -> None:
        tokens.append(service.token)

    with_service(tmp_path, test)
    with_service(tmp_path, test)
    assert tokens[0] != tokens[1]


def test_a_client_with_a_wrong_token_is_told_so(tmp_path: Path) -> None:
    async def test(service: ServiceAddress) -> None:
        async with Client(service.address, "wrong") as client:
            with pytest.raises(Unauthorized):
                await client.list_sandboxes()

    with_service(tmp_path, test)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_it_listens_beyond_this_machine_only_where_that_is_said(host: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with Manager({"here": FakeDriver()}, tmp_path) as manager:
            with pytest.raises(BadSpec, match="--beyond-loopback"):
                async with served(manager, tmp_path, Listen(host)):
                    pass
        async with Manager({"here": FakeDriver()}, tmp_path) as manager:
            async with served(manager, tmp_path, Listen(host, beyond_loopback=True)) as service:
                async with Client(service.address, service.token) as client:
                    assert await client.list_sandboxes() == []

    asyncio.run(main())


def test_a_unix_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    socket = tmp_path / "socket"

    async def main() -> None:
        listen = Listen(unix_socket=socket)
        async with Manager({"here": FakeDriver()}, tmp_path) as manager:
            async with served(manager, tmp_path, listen) as service:
                assert socket.stat().st_mode & 0o777 == 0o600
                assert service.address == f"unix://{socket}"
                with pytest.raises(BadSpec, match="already"):
                    async with served(manager, tmp_path / "other", listen):
                        pass
                async with connect(tmp_path) as client:
                    assert await client.list_sandboxes() == []
        assert not socket.exists()

    asyncio.run(main())


def test_health_tells_whether_sandboxes_can_be_made(tmp_path: Path) -> None:
    async def test(service: ServiceAddress) -> None:
        assert await request(service, "GET", "/v1/health") == (200, {"status": "ok", "hosts": {"here": "open"}})
        async with Client(service.address, service.token) as client:
            await client.drain("here")
        assert await request(service, "GET", "/v1/health") == (
            503,
            {"status": "degraded", "hosts": {"here": "drained"}},
        )

    with_service(tmp_path, test)
