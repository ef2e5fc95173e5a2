"""Client of an OpenAI-compatible chat-completions endpoint: standard library only, retries, deadlines, clear errors.

Replies are not streamed, and proxies that the environment names are not used.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import socket
import ssl
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from rollcage.errors import UserError, did_you_mean
from rollcage.trainer.engines.base import ContextFull
from rollcage.trainer.rollout.episode import AgentFailed
from rollcage.trainer.types import FailureKind, Sampling

MAX_RETRIES = 6
FIRST_BACKOFF_S, MAX_BACKOFF_S = 0.5, 30.0
MAX_RETRY_AFTER_S = 300.0
CONNECT_TIMEOUT_S, START_TIMEOUT_S, PROBE_TIMEOUT_S = 10.0, 10.0, 60.0
MAX_REPLY_BYTES = 64 << 20
_CONTEXT_WORDS = ("context length", "context_length", "maximum context", "context window", "too many tokens")


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model said, why it ended, and how many tokens that took (0 where the endpoint does not say)."""

    text: str
    finish_reason: str
    num_tokens: int


class CallFailed(Exception):
    """One call to the endpoint failed.

    Attributes:
        reason: short stable word.
        kind: "model" where the endpoint refused what this conversation asks for, else "infra".
        retry_s: try again, not earlier than after so many seconds; None where that is of no use.
    """

    def __init__(self, reason: str, message: str, *, kind: FailureKind = "infra", retry_s: float | None = None) -> None:
        super().__init__(message)
        self.reason, self.kind, self.retry_s = reason, kind, retry_s


class ChatEndpoint:
    """One model at one endpoint.

    Errors: until the endpoint has given its first good reply, a failure that would meet every episode (down, wrong
    key, unknown model, no JSON) is a UserError that ends the run. Later it is that episode's own: AgentFailed of kind
    "infra" after the retries are used up, of kind "model" where the endpoint's filter refused the conversation,
    ContextFull where the conversation has outgrown the model.

    Args:
        url: base URL; "/v1" is added where it has no path, a trailing "/chat/completions" is dropped.
        model: name of the model there.
        api_key: sent as bearer token; "" for none.
        timeout_s: deadline of one request.
        concurrency: most requests at once.

    Raises:
        UserError: not an http(s) URL, or a key that no header can hold.
    """

    def __init__(
        self, url: str, model: str, *, api_key: str = "", timeout_s: float = 600.0, concurrency: int = 256
    ) -> None:
        try:
            parts = urlsplit(url.rstrip("/").removesuffix("/chat/completions"))
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in ("http", "https"):
            raise UserError(f"{url!r} is not the URL of an endpoint: it must look like http://localhost:8000/v1")
        if not (api_key.isascii() and api_key.isprintable()):
            raise UserError("$OPENAI_API_KEY holds characters that no HTTP header can carry: set it anew.")
        self._secure, self._host, self._port = parts.scheme == "https", host, port
        self._path = parts.path or "/v1"
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._path}"
        self.model, self.timeout_s = model, timeout_s
        self._headers = {"Content-Type": "application/json", "Accept": "application/json", "Connection": "close"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._limit_field = "max_tokens"
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="endpoint")
        self._answered = False
        self._unusable: UserError | None = None
        self._probing = asyncio.Lock()

    async def start(self) -> None:
        """Make sure that the endpoint is there and knows the model, as far as it tells without generating.

        Raises:
            UserError: it is down, refuses the key, or does not know the model.
        """
        try:
            status, _, body = await self._exchange("GET", "/models", None, START_TIMEOUT_S)
        except CallFailed as error:
            raise self._down(error) from None
        if status in (401, 403):
            raise self._down(_refusal(status, body))
        try:
            known = [str(entry["id"]) for entry in json.loads(body)["data"]]
        except (ValueError, LookupError, TypeError):
            return  # not every endpoint lists its models; the first call will tell
        if self.model not in known:
            try:
                await self._probe()  # some serve names that they do not list
            except CallFailed as error:
                if error.reason != "endpoint_refused":
                    raise self._down(error) from None
                hint = did_you_mean(self.model, known) or f" It lists: {', '.join(known[:8]) or 'none'}."
                raise UserError(f"the endpoint {self.url} has no model {self.model!r}.{hint}") from None

    async def chat(self, messages: Sequence[dict[str, str]], sampling: Sampling, seed: int) -> Reply:
        """Return the model's next message; retries what may pass (429, 5xx, a lost connection, a garbled reply).

        Raises:
            ContextFull, AgentFailed, UserError: see the class.
        """
        jitter = random.Random(seed)
        for attempt in range(MAX_RETRIES + 1):
            try:
                return await self._complete(messages, sampling, seed, self.timeout_s)
            except CallFailed as error:
                if error.retry_s is None or error.retry_s > MAX_RETRY_AFTER_S or attempt == MAX_RETRIES:
                    await self._make_sure()
                    raise AgentFailed(error.kind, error.reason, f"{self.url}: {error}") from None
                backoff_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2**attempt) * jitter.uniform(0.75, 1.25)
                await asyncio.sleep(max(error.retry_s, backoff_s))
        raise AssertionError("unreachable")

    async def close(self) -> None:
        """Free the threads; idempotent. Calls in flight have been hung up on when they were cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _make_sure(self) -> None:
        """Raise UserError where the endpoint has not answered once, and does not answer a simple question either."""
        async with self._probing:
            if self._answered:
                return
            if self._unusable is None:
                try:
                    await self._probe()
                    return
                except CallFailed as error:
                    self._unusable = self._down(error)
            raise self._unusable

    async def _probe(self) -> None:
        hello = [{"role": "user", "content": "Hello"}]
        await self._complete(hello, Sampling(max_new_tokens=1), 0, min(self.timeout_s, PROBE_TIMEOUT_S))

    def _down(self, error: CallFailed) -> UserError:
        return UserError(f"the endpoint {self.url} cannot be used: {error}")

    async def _complete(
        self, messages: Sequence[dict[str, str]], sampling: Sampling, seed: int, timeout_s: float
    ) -> Reply:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            self._limit_field: sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "seed": seed % 2**31,
        }
        if sampling.top_p < 1:
            body["top_p"] = sampling.top_p
        status, headers, raw = await self._exchange("POST", "/chat/completions", json.dumps(body).encode(), timeout_s)
        if status == 400 and self._limit_field in body and "max_completion_tokens" in raw.decode("utf-8", "replace"):
            self._limit_field = "max_completion_tokens"  # reasoning models of some publishers want the newer name
            body[self._limit_field] = body.pop("max_tokens", sampling.max_new_tokens)
            status, headers, raw = await self._exchange(
                "POST", "/chat/completions", json.dumps(body).encode(), timeout_s
            )
        if status != 200:
            raise _refusal(status, raw, headers)
        reply = _parse(raw)
        self._answered = True
        return reply

    async def _exchange(
        self, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connect_s = min(CONNECT_TIMEOUT_S, timeout_s)
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=connect_s)
        call = _Call(connection, method, self._path + path, body, self._headers, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call.run)
        except TimeoutError:
            raise CallFailed("endpoint_timeout", f"no answer within {timeout_s:g} s") from None
        except ConnectionRefusedError:
            text = "connection refused: start the server or mend the URL"
            raise CallFailed("endpoint_down", text, retry_s=0) from None
        except ssl.SSLError as error:
            raise CallFailed("endpoint_tls", f"no secure connection ({error.reason})") from None
        except socket.gaierror:
            raise CallFailed("endpoint_down", f"the host {self._host!r} is unknown", retry_s=0) from None
        except (OSError, http.client.HTTPException) as error:
            text = f"the connection was lost ({type(error).__name__}: {error})"
            raise CallFailed("endpoint_connection", text, retry_s=0) from None
        finally:
            call.hang_up()  # a thread that still waits gets an error at once, so none outlives its call


class _Call:
    """One request, made in a thread, that the event loop can end."""

    def __init__(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
        timeout_s: float,
    ) -> None:
        self._connection, self._method, self._path, self._body, self._headers = connection, method, path, body, headers
        self._timeout_s = timeout_s
        self._hung_up = False

    def run(self) -> tuple[int, http.client.HTTPMessage, bytes]:
        try:
            self._connection.connect()
            if self._hung_up:
                raise ConnectionAbortedError("hung up")
            self._connection.sock.settimeout(self._timeout_s)
            self._connection.request(self._method, self._path, self._body, self._headers)
            with self._connection.getresponse() as response:
                body = response.read(MAX_REPLY_BYTES)
                if not response.isclosed() and response.read(1):
                    raise ConnectionAbortedError(f"the reply is longer than {MAX_REPLY_BYTES} bytes")
                return response.status, response.headers, body
        finally:
            self._connection.close()

    def hang_up(self) -> None:
        self._hung_up = True
        if (open_socket := self._connection.sock) is not None:
            try:
                open_socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed already


def _refusal(status: int, body: bytes, headers: http.client.HTTPMessage | None = None) -> CallFailed:
    """Tell from an HTTP status what went wrong and whether to try again."""
    code, text = "", " ".join(body.decode("utf-8", "replace").split())[:300]
    try:
        error = json.loads(body)
        error = error.get("error", error)
        code, text = str(error.get("code") or ""), " ".join(str(error.get("message") or text).split())[:300]
    except (ValueError, AttributeError):
        pass
    message = f"HTTP {status}: {text or 'no message'}"
    if status in (400, 413, 422) and any(word in f"{code} {text}".lower() for word in _CONTEXT_WORDS):
        raise ContextFull(message)
    if status in (401, 403):
        return CallFailed("endpoint_key", f"{message}; put the right key into $OPENAI_API_KEY")
    if status in (404, 405):
        return CallFailed("endpoint_refused", f"{message}; mend the model's name or the URL (it often ends in /v1)")
    if status in (408, 409, 425, 429) or status >= 500:
        reason = "endpoint_rate_limit" if status == 429 else "endpoint_error"
        return CallFailed(reason, message, retry_s=None if code == "insufficient_quota" else _retry_after_s(headers))
    kind: FailureKind = "model" if "content_filter" in code or "content_policy" in code else "infra"
    return CallFailed("content_filter" if kind == "model" else "endpoint_refused", message, kind=kind)


def _retry_after_s(headers: http.client.HTTPMessage | None) -> float:
    """Return the seconds that ``Retry-After`` asks for, given as a number or as a date; 0 without one."""
    value = (headers.get("Retry-After") if headers else None) or "0"
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return 0.0


def _parse(raw: bytes) -> Reply:
    """Read a chat completion."""
    try:
        reply = json.loads(raw)
        choice = reply["choices"][0]
        content, finish_reason = choice["message"].get("content"), str(choice.get("finish_reason") or "stop")
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content)
        num_tokens = int((reply.get("usage") or {}).get("completion_tokens") or 0)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        start = " ".join(raw[:80].decode("utf-8", "replace").split())
        text = f"its reply is not a chat completion ({type(error).__name__}; it starts with {start!r})"
        raise CallFailed("endpoint_bad_reply", text, retry_s=0) from None
    if finish_reason == "content_filter":
        raise CallFailed("content_filter", "its filter withheld the reply", kind="model")
    return Reply("" if content is None else str(content), finish_reason, num_tokens)
