"""A web server on this machine that keeps what it is sent."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Listener:
    """Answers with the statuses it is given, one after another, then 200."""

    def __init__(self, statuses: list[int]) -> None:
        self.heard: list[Any] = []
        listener = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                listener.heard.append(json.loads(body))
                self.send_response(statuses.pop(0) if statuses else 200)
                self.send_header("Location", "http://127.0.0.1:9/")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook?secret=hush"


@contextlib.contextmanager
def listening(*statuses: int) -> Iterator[Listener]:
    """Lend a listener."""
    listener = Listener(list(statuses))
    thread = threading.Thread(target=listener.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield listener
    finally:
        listener.server.shutdown()
        thread.join()
        listener.server.server_close()
