"""A server over a folder of runs, and requests to it as any program could send them."""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rollcage.monitor.server.sandbox_routes import FindSandboxes
from rollcage.monitor.server.serving import Background, Listen


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Browser:
    """Asks one server."""

    port: int
    token: str

    def ask(self, method: str, path: str, body: Any = None, *, token: str = "", **headers: str) -> Answer:
        """Send one request, the path as it is; "_" in the names of headers means "-"."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """Return the JSON of an answer that is none but good."""
        answer = self.ask("GET", path)
        assert answer.status == 200, (path, answer)
        return answer.json

    def run(self, run_id: str, rest: str) -> Any:
        return self.get(f"/api/runs/{quote(run_id, safe='')}/{rest}")

    def act(self, path: str, body: Any = None) -> Answer:
        return self.ask("POST", path, {} if body is None else body, token=self.token)

    def raw(self, sent: bytes) -> bytes:
        """Send bytes on a connection of their own; returns what comes back until it is closed."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))


@contextlib.contextmanager
def serving(
    folder: Path, *, listen: Listen | None = None, find_sandboxes: FindSandboxes | None = None
) -> Iterator[Browser]:
    """Lend what asks a server over a folder."""
    with Background(folder, listen or Listen(), find_sandboxes=find_sandboxes) as server:
        root, _, token = server.address.partition("/#token=")
        yield Browser(int(root.rpartition(":")[2]), token)
