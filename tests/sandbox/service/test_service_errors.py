"""Errors of the service: typed, the same on both sides, and never a way to bring it down."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox.places import served
from tests.sandbox.service.raw_http import raw, request

from rollcage.errors import RollcageError, UserError
from rollcage.sandbox import errors
from rollcage.sandbox.client import connection
from rollcage.sandbox.client.address import ServiceAddress
from rollcage.sandbox.client.client import Client
from rollcage.sandbox.client.wire import ERRORS, error_from_json, error_to_json
from rollcage.sandbox.drivers.fake import FakeDriver
from rollcage.sandbox.errors import BadRequest, BadSpec, SandboxError, SandboxNotFound
from rollcage.sandbox.manager.manager import Manager
from rollcage.sandbox.types import MIB, ExecResult, Output, SandboxInfo, SandboxSpec, State

CLASSES = [UserError, *(it for it in vars(errors).values() if inspect.isclass(it) and issubclass(it, SandboxError))]
EXAMPLES: dict[str, Any] = {
    "state": "FAILED",
    "exit_code": 137,
    "oom_killed": True,
    "log_tail": "the\nlast é\n",
    "generation": 7,
    "may_have_happened": True,
}


def example(kind: type[RollcageError]) -> RollcageError:
    """Return an error with a value of its own in every attribute."""
    plain = kind("what is wrong: mend it.")
    return kind("what is wrong: mend it.", **{name: EXAMPLES[name] for name in vars(plain)})


class Failing:
    """Sandboxes and a sandbox whose every call raises one error, or yields one piece before it does."""

    id = "a1"

    def __init__(self, error: Exception) -> None:
        self.error, self.pieces = error, 0

    async def attach(self, sandbox_id: str) -> Failing:
        return self

    async def info(self) -> SandboxInfo:
        return SandboxInfo("a1", "", "", SandboxSpec(), "here", State.READY, 1, 0.0)

    async def list_sandboxes(self, *, owner: str | None = None) -> list[SandboxInfo]:
        raise self.error

    async def stream(self, command: Any, **how: Any) -> AsyncIterator[Output | ExecResult]:
        for _ in range(self.pieces):
            yield Output("stdout", b"piece")
        raise self.error

    async def get_archive(self, source: str, *, timeout_s: float) -> AsyncIterator[bytes]:
        for _ in range(self.pieces):
            yield b"piece"
        raise self.error

    async def close(self) -> None:
        pass


def with_failing(error: Exception, folder: Path, test: Callable[[Failing, Client], Awaitable[None]]) -> None:
    async def main() -> None:
        failing = Failing(error)
        async with asyncio.timeout(60.0), served(failing, folder) as service:  # type: ignore[arg-type]
            async with Client(service.address, service.token) as client:
                await test(failing, client)

    asyncio.run(main())


def with_manager(folder: Path, test: Callable[[ServiceAddress, Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60.0), Manager({"here": FakeDriver()}, folder) as manager:
            async with served(manager, folder) as service, Client(service.address, service.token) as client:
                await test(service, client)

    asyncio.run(main())


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_comes_out_as_it_went_in(
    kind: type[RollcageError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RETRY_S", 1.0)  # a service that cannot be reached is tried again so long
    error = example(kind)

    async def test(failing: Failing, client: Client) -> None:
        sandbox = await client.attach("a1")
        for pieces in (0, 2):
            failing.pieces, items = pieces, sandbox.stream("true")
            for _ in range(pieces):
                assert await anext(items) == Output("stdout", b"piece")
            with pytest.raises(kind) as told:
                await anext(items)
            assert type(told.value) is kind
            assert (str(told.value), vars(told.value)) == (str(error), vars(error))
        with pytest.raises(kind) as told:
            await client.list_sandboxes()
        assert type(told.value) is kind
        assert (str(told.value), vars(told.value)) == (str(error), vars(error))

    with_failing(error, tmp_path, test)


def test_errors_of_other_versions_are_still_errors() -> None:
    assert type(error_from_json({"type": "OfTomorrow", "message": "m"})) is SandboxError
    unknown = error_from_json({"type": "StartFailed", "message": "m", "attributes": {"of_tomorrow": 1}})
    assert (type(unknown), str(unknown)) == (errors.StartFailed, "m")

    class OfMine(errors.NoSuchPath):
        pass

    assert error_to_json(OfMine("m"))["type"] == "NoSuchPath"
    assert set(ERRORS) >= {kind.__name__ for kind in CLASSES}


def test_what_nobody_expected_tells_its_name_and_no_more(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def test(failing: Failing, client: Client) -> None:
        with pytest.raises(SandboxError) as told:
            await client.list_sandboxes()
        assert "ZeroDivisionError" in str(told.value)
        assert "secret" not in str(told.value)

    with_failing(ZeroDivisionError("secret"), tmp_path, test)
    assert "ZeroDivisionError: secret" in caplog.text + capfd.readouterr().err


def test_an_archive_that_breaks_off_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    async def test(failing: Failing, client: Client) -> None:
        failing.pieces = 3
        with pytest.raises(errors.ServiceUnreachable, match="midway"):
            await (await client.attach("a1")).get("x", tmp_path / "x")
        assert not [path for path in tmp_path.iterdir() if path.name.startswith((".x", "x"))]

    with_failing(errors.SandboxUnavailable("gone"), tmp_path, test)


def test_a_bad_specification_is_told_field_by_field(tmp_path: Path) -> None:
    async def test(service: ServiceAddress, client: Client) -> None:
        bad: Any = SandboxSpec(cpus="many", ports=("http",))  # type: ignore[arg-type]
        with pytest.raises(BadSpec, match=r"spec.cpus: .*; spec.ports.0: .*"):
            await client.create(bad)
        status, told = await request(service, "POST", "/v1/sandboxes", json={"spec": {"imgae": "x"}})
        assert (status, told["error"]["type"]) == (422, "BadSpec")
        assert "spec.imgae" in told["error"]["message"]

    with_manager(tmp_path, test)


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/v1/sandboxes", b"{"),
        ("/v1/sandboxes", b""),
        ("/v1/sandboxes", b"[]"),
        ("/v1/sandboxes", b"\xff\xfe"),
        ("/v1/sandboxes", b'{"spec": {}, "unknown": 1}'),
        ("/v1/sandboxes", b'{"spec": {}, "deadline_s": NaN}'),
        ("/v1/sandboxes", b'{"spec": {}, "deadline_s": 1e999}'),
        ("/v1/sandboxes", b'{"spec": {}, "deadline_s": -1}'),
        ("/v1/sandboxes", b"[" * 100_000),
        ("/v1/sandboxes/a/exec", b'{"command": 1}'),
        ("/v1/sandboxes/a/exec", b'{"command": "x", "stdin": "%%%"}'),
        ("/v1/sandboxes/a/exec", b'{"command": "x", "stdin": 5}'),
        ("/v1/sandboxes/a/exec", b'{"command": "x", "max_output_bytes": 1e30}'),
        ("/v1/sandboxes/a/exec", b'{"command": "\\ud800"}'),
        ("/v1/sandboxes/a/renew", b'{"ttl_s": "soon"}'),
    ],
)
def test_a_bad_body_is_a_typed_error(path: str, sent: bytes, tmp_path: Path) -> None:
    async def test(service: ServiceAddress, client: Client) -> None:
        headers = {"Content-Type": "application/json"}
        status, told = await request(service, "POST", path, data=sent, headers=headers)
        assert 400 <= status < 500
        assert told["error"]["type"] in ("BadRequest", "BadSpec", "SandboxNotFound")
        assert told["error"]["status"] == status
        assert "\n" not in told["error"]["message"]
        assert await client.list_sandboxes() == []

    with_manager(tmp_path, test)


def test_bad_addresses_are_typed_errors(tmp_path: Path) -> None:
    async def test(service: ServiceAddress, client: Client) -> None:
        for method, path, wanted in [
            ("GET", "/nowhere", 404),
            ("PUT", "/v1/sandboxes", 405),
            ("GET", "/v1/events?after=-1", 422),
            ("GET", "/v1/events?after=x", 422),
            ("GET", "/v1/sandboxes/..%2f..%2fetc", 404),
            ("GET", "/v1/sandboxes/%00", 404),
            ("GET", f"/v1/sandboxes/{'x' * 5000}", 422),
            ("GET", "/v1/sandboxes/x/content?path=a&max_bytes=99999999999", 404),
            ("POST", "/v1/sandboxes/x/files?folder=%2F&timeout_s=inf", 422),
        ]:
            status, told = await request(service, method, path)
            assert (status, told["error"]["status"]) == (wanted, wanted), path
        for sandbox_id in ("..", ".", "a/b", "%2e", "\0", "é", "a?b#c"):
            with pytest.raises(SandboxNotFound):
                await client.attach(sandbox_id)

    with_manager(tmp_path, test)


def test_what_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async def test(service: ServiceAddress, client: Client) -> None:
        head = f"POST /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {service.token}\r\n"
        answer = await raw(service, f"{head}Content-Length: 99999999999\r\nConnection: close\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "BadRequest"

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield bytes(MIB)

        status, _ = await request(service, "POST", "/v1/sandboxes", data=endless())
        assert status == 413
        assert await client.list_sandboxes() == []

    with_manager(tmp_path, test)


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * 300_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % n for n in range(50_000)) + b"\r\n",
        b"GET /" + b"x" * 300_000 + b" HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
def test_nonsense_on_the_wire_is_refused_and_hurts_nobody(sent: bytes, tmp_path: Path) -> None:
    async def test(service: ServiceAddress, client: Client) -> None:
        answer = await raw(service, sent + b"\r\n\r\n")
        assert answer == b"" or answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 401 "))
        assert await client.list_sandboxes() == []

    with_manager(tmp_path, test)


def test_a_server_that_is_none_of_ours_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRY_S", 0.5)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nConnection: close\r\n\r\nnginx")
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, Client(f"http://127.0.0.1:{port}", "t") as client:
            with pytest.raises(errors.ServiceUnreachable, match="no sandbox service"):
                await client.list_sandboxes()
        async with Client(f"http://127.0.0.1:{port}", "t") as client:
            with pytest.raises(errors.ServiceUnreachable, match="rollcage sandbox serve"):
                await client.list_sandboxes()
        for address in ("", "ftp://x", "http://"):
            with pytest.raises(BadSpec):
                Client(address, "t")

    asyncio.run(main())


def test_bad_requests_are_user_errors() -> None:
    assert issubclass(BadRequest, UserError)
