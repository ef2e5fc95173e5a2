"""A chat-completions endpoint that answers as it is told: for tests, and for trying a benchmark without a model."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True, slots=True)
class RawReply:
    """A reply that is no chat completion, or a late one.

    Attributes:
        status: HTTP status; 0 hangs up without a word.
        body: sent as it is.
        headers: further headers.
        delay_s: seconds before anything is sent; ends early when the endpoint is closed.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0


class FakeEndpoint:
    """Serves ``/v1/models`` and ``/v1/chat/completions`` on the loopback interface while the context is open.

    Attributes:
        url: base URL.
        requests: bodies of the chat requests so far; append-only.
        headers: their headers.

    Args:
        answer: messages -> the model's text, or a `RawReply`; called in a thread for each request.
        models: the names that it lists and serves; None: it serves any name and lists none.

    >>> with FakeEndpoint(lambda messages: "<answer>1+2</answer>") as endpoint:
    ...     endpoint.url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(
        self, answer: Callable[[list[dict[str, str]]], str | RawReply], *, models: Sequence[str] | None = ("fake",)
    ) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self._answer, self._models = answer, models
        self._closing = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                listed = endpoint._models is not None and self.path == "/v1/models"
                self._send(endpoint._list() if listed else RawReply(404, b"not found"))

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.requests.append(request)
                endpoint.headers.append(dict(self.headers))
                self._send(endpoint._complete(request) if self.path == "/v1/chat/completions" else RawReply(404))

            def _send(self, reply: RawReply) -> None:
                endpoint._closing.wait(reply.delay_s)
                if reply.status == 0:
                    return
                try:
                    self.send_response(reply.status)
                    for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(reply.body)
                except OSError:
                    pass  # the client has hung up

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> FakeEndpoint:
        """Start serving."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop serving."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _list(self) -> RawReply:
        return RawReply(200, json.dumps({"data": [{"id": name} for name in self._models or ()]}).encode())

    def _complete(self, request: Mapping[str, Any]) -> RawReply:
        if self._models is not None and request["model"] not in self._models:
            error = {"message": f"The model `{request['model']}` does not exist.", "code": "model_not_found"}
            return RawReply(404, json.dumps({"error": error}).encode())
        answer = self._answer(request["messages"])
        if isinstance(answer, RawReply):
            return answer
        choice = {"index": 0, "message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
        usage = {"completion_tokens": len(answer.split())}
        return RawReply(200, json.dumps({"choices": [choice], "usage": usage}).encode())
