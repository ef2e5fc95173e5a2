"""The endpoint of a long-running command: who may ask it for what, and that it leaves nothing behind."""

import http.client
import json
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from rollcage.errors import RollcageError, UserError
from rollcage.monitor.endpoint import CONTROL, MAX_BODY_BYTES, MAX_CONNECTIONS, Endpoint


def refuse(arguments: Mapping[str, Any]) -> None:
    raise RollcageError("not now")


def fail(arguments: Mapping[str, Any]) -> None:
    raise ZeroDivisionError("oops")


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    actions = {"pause": lambda arguments: {"paused": True, **arguments}, "refuse": refuse, "fail": fail}
    made = Endpoint(lambda accept: (b"up 1\n", "text/plain"), actions=actions, folder=tmp_path)
    with made:
        yield made


def ask(
    endpoint: Endpoint, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, Any] | str]:
    connection = http.client.HTTPConnection(endpoint.address.removeprefix("http://"), timeout=10)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if text.startswith("{") else text
    finally:
        connection.close()


def bearer(endpoint: Endpoint) -> str:
    return f"Bearer {endpoint.token}"


def test_metrics_need_no_token_on_the_loopback(endpoint: Endpoint) -> None:
    assert ask(endpoint, "GET", "/metrics") == (200, "up 1\n")
    assert ask(endpoint, "GET", "/etc/passwd")[0] == 404


def test_actions_need_the_token(endpoint: Endpoint) -> None:
    assert ask(endpoint, "POST", "/actions/pause", b"{}")[0] == 401
    assert ask(endpoint, "POST", "/actions/pause", b"{}", Authorization="Bearer wrong")[0] == 401
    assert ask(endpoint, "POST", "/actions/pause", b"{}", Authorization=f"Basic {endpoint.token}")[0] == 401
    answer = ask(endpoint, "POST", "/actions/pause", b'{"for": 3}', Authorization=bearer(endpoint))
    assert answer == (200, {"paused": True, "for": 3})


def test_a_name_that_is_not_this_machines_is_refused(endpoint: Endpoint) -> None:
    """A page of elsewhere may let its own name mean 127.0.0.1 (DNS rebinding)."""
    assert ask(endpoint, "GET", "/metrics", Host="evil.example:80")[0] == 421
    assert ask(endpoint, "POST", "/actions/pause", b"{}", Host="evil.example", Authorization=bearer(endpoint))[0] == 421
    port = endpoint.address.rpartition(":")[2]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}", "[::1]:80", "localhost"):
        assert ask(endpoint, "GET", "/metrics", Host=host)[0] == 200


def test_what_cannot_be_done_is_said(endpoint: Endpoint) -> None:
    def post(name: str, body: bytes = b"{}") -> tuple[int, Any]:
        status, told = ask(endpoint, "POST", f"/actions/{name}", body, Authorization=bearer(endpoint))
        assert isinstance(told, dict)
        return status, told["error"]["message"]

    assert post("stop") == (404, "there is no action 'stop' (known: pause, refuse, fail).")
    assert post("refuse") == (409, "not now")
    assert post("fail") == (500, "fail failed: ZeroDivisionError: oops")
    assert post("pause", b"[]")[0] == post("pause", b"{")[0] == 400
    assert post("pause", b"[" * 60_000)[0] == 400
    assert post("pause", b"x" * (MAX_BODY_BYTES + 1))[0] == 413


def test_the_control_file_is_its_owners_and_goes_with_the_endpoint(tmp_path: Path) -> None:
    endpoint = Endpoint(None, folder=tmp_path).start()
    path = tmp_path / CONTROL
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    told = json.loads(path.read_text())
    assert (told["address"], told["token"]) == (endpoint.address, endpoint.token)
    assert ask(endpoint, "GET", "/metrics")[0] == 503  # nothing measures here
    endpoint.close()
    endpoint.close()
    assert not path.exists()


def test_another_ones_control_file_stays(tmp_path: Path) -> None:
    first = Endpoint(None, folder=tmp_path).start()
    second = Endpoint(None, folder=tmp_path).start()  # a resumed run, say
    first.close()
    assert json.loads((tmp_path / CONTROL).read_text())["token"] == second.token
    second.close()


def test_beyond_the_loopback_everything_needs_the_token() -> None:
    with Endpoint(lambda accept: (b"up 1\n", "text/plain"), host="0.0.0.0", token="known") as endpoint:
        assert ask(endpoint, "GET", "/metrics")[0] == 401
        assert ask(endpoint, "GET", "/metrics", Authorization="Bearer known")[0] == 200


def test_a_port_that_is_taken_is_said() -> None:
    with Endpoint(None) as endpoint:
        port = int(endpoint.address.rpartition(":")[2])
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1 port {port}"):
            Endpoint(None, port=port).start()


def test_clients_that_say_nothing_hold_up_neither_others_nor_the_end(endpoint: Endpoint) -> None:
    address = ("127.0.0.1", int(endpoint.address.rpartition(":")[2]))
    silent = [socket.create_connection(address) for _ in range(MAX_CONNECTIONS - 2)]
    assert ask(endpoint, "GET", "/metrics")[0] == 200
    began_s, num_before = time.monotonic(), threading.active_count()
    endpoint.close()
    assert time.monotonic() - began_s < 2.0
    assert threading.active_count() <= num_before - len(silent)
    for connection in silent:
        connection.close()
