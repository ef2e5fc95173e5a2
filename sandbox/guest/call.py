"""One request to the agent and the messages that answer it."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from rollcage.sandbox.errors import (
    BadArchive,
    DeadlineExceeded,
    DiskPressure,
    GuestLost,
    InternalError,
    NoSuchPath,
    SandboxError,
    SandboxUnavailable,
    UnsafePath,
)
from rollcage.sandbox.guest.agent.frames import WINDOW_BYTES, ProtocolError, charge
from rollcage.sandbox.types import ExecResult

T = TypeVar("T")
_ERRORS: dict[str, type[SandboxError]] = {
    "SandboxUnavailable": SandboxUnavailable,
    "NoSuchPath": NoSuchPath,
    "UnsafePath": UnsafePath,
    "BadArchive": BadArchive,
    "DiskPressure": DiskPressure,
}
_NUMBER = (int, float)
_MESSAGES: dict[str, dict[str, type | tuple[type, ...]]] = {
    "output": {"source": str},
    "credit": {"n": int},
    "kept": {},
    "opened": {},
    "closed": {},
    "error": {"kind": str, "message": str},
    "vitals": {"num_oom_kills": int, "memory_bytes": int, "num_pids": int, "cpu_s": _NUMBER},
    "done": {
        "exit_code": (int, type(None)),
        "signal": (int, type(None)),
        "timed_out": bool,
        "oom_killed": bool,
        "truncated": bool,
        "num_stdout_bytes": int,
        "num_stderr_bytes": int,
        "num_stdout_kept": int,
        "duration_s": _NUMBER,
    },
}
_LAST = frozenset({"done", "error", "vitals", "opened", "closed"})
_SLACK_BYTES = 1 << 22
"""What is left in pipes when a command ends comes beyond the window."""


class Call:
    """A call in flight. Leaving its ``with`` block unanswered cancels it inside.

    Args:
        call_id: goes with every message of the call.
        deadline: loop time after which nothing more is waited for.
        what: for messages, such as "The command".
        max_output_bytes: as asked for; an agent that sends much more is broken, or not ours any more.
        send: sends a message to the agent.
        forget: called at the end; messages that still come are dropped then.
    """

    def __init__(
        self,
        call_id: int,
        deadline: float,
        what: str,
        max_output_bytes: int,
        send: Callable[[dict[str, Any], bytes], None],
        forget: Callable[[int], None],
    ) -> None:
        self.id = call_id
        self.deadline = deadline
        self._what = what
        self._most_waiting_bytes = 2 * max_output_bytes + WINDOW_BYTES + _SLACK_BYTES
        self._send = send
        self._forget = forget
        self._messages: deque[tuple[dict[str, Any], bytes]] = deque()
        self._num_waiting_bytes = 0
        self._arrived = asyncio.Event()
        self._kept: list[bytes] = []
        self._credit = 0
        self._is_answered = False
        self._lost = ""
        self._failure: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._forget(self.id)
        if not self._is_answered and not self._lost:
            self._send({"op": "cancel", "id": self.id}, b"")

    @property
    def has_message(self) -> bool:
        """Whether `next` returns at once."""
        return bool(self._messages) or bool(self._lost)

    def deliver(self, message: dict[str, Any], payload: bytes) -> None:
        """Take a message that came; raises ProtocolError where it is none of ours."""
        fields = _MESSAGES.get(str(message.get("op")))
        if fields is None or not all(isinstance(message.get(name), kind) for name, kind in fields.items()):
            raise ProtocolError(f"an unknown message {str(message)[:200]}")
        self._num_waiting_bytes += charge(payload)
        if self._num_waiting_bytes > self._most_waiting_bytes:
            raise ProtocolError("more output than was asked for")
        if message["op"] == "kept":
            self._kept.append(payload)
            return
        self._messages.append((message, payload))
        self._arrived.set()

    def lose(self, reason: str) -> None:
        """No message will come any more."""
        self._lost = reason
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """Let `next` raise ``error``, whatever else comes."""
        self._failure = error
        self._arrived.set()

    async def next(self) -> tuple[dict[str, Any], bytes]:
        """Return the next message.

        Raises:
            DeadlineExceeded, GuestLost: there is none.
            SandboxUnavailable, NoSuchPath, UnsafePath, SandboxError: it is an error.
            Exception: what `fail` was given.
        """
        if self._failure is not None:
            raise self._failure
        if not self._messages:
            await self.in_time(self._wait())
        message, payload = self._messages.popleft()
        self._num_waiting_bytes -= charge(payload)
        self._is_answered = message["op"] in _LAST
        if message["op"] == "error":
            raise _ERRORS.get(message["kind"], InternalError)(message["message"])
        return message, payload

    async def _wait(self) -> None:
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            if self._lost:
                raise GuestLost(self._lost)
            self._arrived.clear()
            await self._arrived.wait()

    async def in_time(self, awaitable: Awaitable[T]) -> T:
        """Await something by the call's deadline; raises DeadlineExceeded."""
        try:
            async with asyncio.timeout_at(self.deadline):
                return await awaitable
        except TimeoutError:
            raise DeadlineExceeded(f"{self._what} did not end by its deadline.") from None

    def give_credit(self, payload: bytes) -> None:
        """A piece of streamed output has been taken: so much more may come."""
        self._credit += charge(payload)
        if self._credit >= WINDOW_BYTES // 4 and not self._lost:
            self._send({"op": "credit", "id": self.id, "n": self._credit}, b"")
            self._credit = 0

    def result(self, done: dict[str, Any], payload: bytes) -> ExecResult:
        """Return what a command's last message says."""
        output = b"".join([*self._kept, payload])
        return ExecResult(
            exit_code=done["exit_code"],
            signal=done["signal"],
            timed_out=done["timed_out"],
            oom_killed=done["oom_killed"],
            truncated=done["truncated"],
            num_stdout_bytes=done["num_stdout_bytes"],
            num_stderr_bytes=done["num_stderr_bytes"],
            stdout=output[: done["num_stdout_kept"]],
            stderr=output[done["num_stdout_kept"] :],
            duration_s=done["duration_s"],
        )

    def check_moved(self, done: dict[str, Any], payload: bytes) -> None:
        """Raise what a put or get that failed inside says: NoSuchPath, UnsafePath, BadArchive or DeadlineExceeded."""
        result = self.result(done, payload)
        if result.ok:
            return
        if result.timed_out:
            raise DeadlineExceeded(f"{self._what} did not end by its deadline.")
        try:
            error = json.loads(result.stderr)
            kind, message = str(error["kind"]), str(error["message"])
        except (ValueError, TypeError, KeyError):
            if result.signal is None:
                raise InternalError(f"{self._what} failed: it ended with {result}.") from None
            how = "for memory" if result.oom_killed else f"by signal {result.signal}"
            raise SandboxUnavailable(f"{self._what} failed: it was killed {how}.") from None
        raise _ERRORS.get(kind, InternalError)(message)
