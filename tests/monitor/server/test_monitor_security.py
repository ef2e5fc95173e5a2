"""The server against those who mean it ill: other hosts, pages of elsewhere, paths, secrets, too much of anything."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.monitor.pages.recorded_run import HOSTILE, write_config, write_run
from tests.monitor.server.browser import Browser, serving

from rollcage.errors import UserError
from rollcage.monitor.cli import read_token, run_monitor
from rollcage.monitor.server import patience
from rollcage.monitor.server.serving import Background, Listen

HOSTILE_NAMES = ("<img src=x onerror=alert(1)>", "a b%2e%2e", "..hidden", "quote\"'&", "ünï", "-rf", "?x#y")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("security")
    write_run(top / "runs" / "good", num_updates=4, num_episodes=4)
    write_config(top / "outside", seed=0, num_updates=1)
    (top / "runs" / "link").symlink_to(top / "outside")
    for name in HOSTILE_NAMES:
        write_config(top / "runs" / name, seed=0, num_updates=1)
    return top / "runs"


@pytest.fixture(scope="module")
def browser(runs: Path) -> Iterator[Browser]:
    with serving(runs) as asks:
        yield asks


@pytest.mark.parametrize(
    "path",
    [
        "/../app.py",
        "/%2e%2e/server/app.py",
        "/..%2fserver/app.py",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/parts/../../cli.py",
        "/index.html%00.js",
        "/api/runs/..%2f..%2foutside/status",
        "/api/runs/%2e%2e/outside/status",
        "/api/runs/..%2foutside/config",
        "/api/runs/link/status",  # leads out of the folder
        "/api/runs//etc/config",
        "/api/runs/good%2f..%2fgood/status",
        "/api/runs/good/trajectories/..%2f..%2fconfig.json",
        "/api/runs/good/trajectories/1-99999999999",
        "/api/runs/good/trajectories/-1--1",
    ],
)
def test_no_path_leads_to_a_file_that_is_no_page_and_no_run(browser: Browser, path: str) -> None:
    answer = browser.ask("GET", path)
    assert answer.status == 404
    assert set(answer.json["error"]) == {"type", "message", "status"}


def test_runs_with_hostile_names_are_shown_as_they_are_and_found_by_them(browser: Browser) -> None:
    found = {run["id"] for run in browser.get("/api/runs")["runs"]}
    assert found == {"good", *HOSTILE_NAMES}
    for name in HOSTILE_NAMES:
        assert browser.run(name, "status")["id"] == name


def test_every_answer_binds_the_browser(browser: Browser) -> None:
    for path in ("/", "/app.js", "/api/runs", "/nothing", "/api/runs/nothing/status"):
        headers = browser.ask("GET", path, Origin="http://evil.example").headers
        assert "script-src 'self'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert not [name for name in headers if name.startswith("access-control")]
        assert "set-cookie" not in headers
    assert browser.ask("GET", "/api/runs").headers["cache-control"] == "no-store"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.1.2.3"])
def test_a_name_that_is_not_this_machines_is_turned_away(browser: Browser, host: str) -> None:
    assert browser.ask("GET", "/api/runs", Host=host).status == 421
    assert browser.ask("GET", "/", Host=host).status == 421


@pytest.mark.parametrize("shown", ["", "Bearer", "Bearer wrong", "Basic TOKEN", "Bearer TOKENx", "bearer  "])
def test_an_action_needs_the_token_and_a_cookie_is_none(browser: Browser, shown: str) -> None:
    headers = {"Authorization": shown.replace("TOKEN", browser.token), "Cookie": f"token={browser.token}"}
    for path in ("/api/runs/good/actions/pause", "/api/sandboxes/x/delete", "/api/sandboxes/hosts/h/drain"):
        assert browser.ask("POST", f"{path}?token={browser.token}", {}, **headers).status == 401


def test_forms_and_other_pages_cannot_act_even_with_the_token(browser: Browser) -> None:
    path = "/api/runs/good/actions/pause"
    assert browser.ask("POST", path, b"a=b", token=browser.token, Content_Type="text/plain").status == 415
    assert browser.ask("POST", path, {}, token=browser.token, Origin="http://evil.example").status == 403
    own = f"http://127.0.0.1:{browser.port}"
    assert browser.ask("POST", path, {}, token=browser.token, Origin=own).status == 409  # it has ended


def test_too_much_of_anything_is_refused(browser: Browser) -> None:
    path = "/api/runs/good/actions/pause"
    assert browser.ask("POST", path, b"x" * 100_000, token=browser.token).status == 413
    chunks = b"POST %b HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\nContent-Type: application/json\r\n"
    sent = (chunks % (b"/api/sandboxes/hosts/h/drain", browser.token.encode())) + b"Transfer-Encoding: chunked\r\n\r\n"
    assert b" 413 " in browser.raw(sent + b"10000\r\n" + b"x" * 0x10000 + b"\r\n1\r\nx\r\n0\r\n\r\n")[:30]
    assert browser.ask("GET", "/api/runs?" + "x" * 20_000).status == 414
    assert browser.ask("GET", "/api/runs/good/series?max_points=100000").status == 400
    assert browser.ask("GET", "/api/runs/good/events?limit=1e9").status == 400
    assert browser.ask("GET", "/api/compare?" + "&".join(f"runs={n}" for n in range(99)) + "&names=a").status == 400
    assert browser.ask("GET", "/api/runs/good/timeline?start_s=nan").status == 400
    assert browser.get("/api/runs")["runs"]  # and it goes on


def test_who_does_not_say_what_is_wanted_is_let_go(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "HEAD_S", 0.3)
    whole = b"GET /api HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def answered(connection: socket.socket) -> bool:
        connection.sendall(whole)
        said = b""
        while not said.endswith(b"}"):
            said += connection.recv(65536)
        return said.startswith(b"HTTP/1.1 200")

    for num_before, begun in ((0, b""), (0, whole[:20]), (1, whole[:20])):  # nothing, half, and half after a whole one
        with socket.create_connection(("127.0.0.1", browser.port), timeout=10) as connection:
            assert all(answered(connection) for _ in range(num_before))
            for letter in begun:  # byte after byte does not help
                connection.sendall(bytes([letter]))
            assert connection.recv(65536) == b""
    with socket.create_connection(("127.0.0.1", browser.port), timeout=10) as connection:
        assert answered(connection)
        time.sleep(0.4)  # a connection may rest between two requests
        assert answered(connection)


def test_no_secret_of_a_configuration_is_shown(browser: Browser) -> None:
    told = browser.ask("GET", "/api/runs/good/config").body + browser.ask("GET", "/api/runs").body
    assert b"very-secret-word" not in told
    assert b"***" in told


def test_what_a_model_wrote_is_json_and_never_a_page(browser: Browser) -> None:
    total, found = 0, browser.run("good", "trajectories?text=hacked&limit=5")
    total = found["total"]
    assert total == 1
    answer = browser.ask("GET", f"/api/runs/good/trajectories/{found['trajectories'][0]['key']}")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["trajectory"]["prompt"] == HOSTILE
    assert answer.body.isascii()


def test_another_address_needs_a_token_and_then_reading_needs_it_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--token-file"):
        Background(tmp_path, Listen(host="0.0.0.0"))
    with serving(tmp_path, listen=Listen(host="0.0.0.0", token="a-token-of-ours-1234")) as asks:
        assert asks.ask("GET", "/api/runs").status == 401
        assert asks.ask("GET", "/api/runs", token="a-token-of-ours-1234").json == {"runs": []}
        assert asks.ask("GET", "/api/runs", token="a-token-of-ours-1234", Host="my-server").status == 200
        assert asks.ask("GET", "/").status == 200  # the page itself holds nothing
        assert asks.ask("GET", "/metrics").status == 401
        assert asks.ask("GET", "/metrics", token="a-token-of-ours-1234").status == 200


def test_a_token_file_must_be_long_enough_and_nobody_elses(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for text, mode, told in (
        ("short", 0o600, "16"),
        ("x" * 32, 0o644, "chmod 600"),
        ("two words" * 4, 0o600, "one word"),
    ):
        path.write_text(text)
        path.chmod(mode)
        with pytest.raises(UserError, match=told):
            read_token(path)
    path.write_text("x" * 32 + "\n")
    path.chmod(0o600)
    assert read_token(path) == "x" * 32
    with pytest.raises(UserError, match="cannot be read"):
        run_monitor([str(tmp_path), "--token-file", str(tmp_path / "nothing")])


def test_a_run_folder_cannot_send_the_servers_request_elsewhere(tmp_path: Path) -> None:
    from rollcage.monitor.server.control import control_of

    for address in (
        "http://evil.example/",
        "https://127.0.0.1/",
        "file:///etc/passwd",
        "http://127.0.0.1@evil.example",
    ):
        (tmp_path / "control.json").write_text(json.dumps({"address": address, "token": "t"}))
        assert control_of(tmp_path) is None
    (tmp_path / "control.json").write_text(json.dumps({"address": "http://127.0.0.1:9", "token": "t"}))
    assert control_of(tmp_path) is not None
