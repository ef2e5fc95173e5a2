"""Telling somebody of an alert: a webhook or a command, off the run's own thread, in bounded time."""

from __future__ import annotations

import http.client
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from rollcage.errors import UserError

MAX_WAITING = 100
"""Alerts that wait to be told; later ones are left out, and that is told."""
MAX_CLOSE_S = 15.0
"""So long the end of a run waits for what is still to be told."""
FIRST_PAUSE_S = 1.0
"""Before the second try; it doubles with each."""


@dataclass(frozen=True)
class OnAlert:
    """Whom to tell when a rule begins or ends to fire, beside the run's events and the dashboard.

    Raises:
        UserError: values that cannot be meant.
    """

    webhook: str = ""
    """URL that gets each alert as JSON (POST): rule, state ("firing" or "resolved"), severity, message, value, run."""
    command: str = ""
    """Shell command that gets the same JSON on its standard input, and RULE, STATE and SEVERITY in its environment."""
    timeout_s: float = 10.0
    """Longest time of one try."""
    tries: int = 3
    """Tries of a webhook; a command is run once."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.webhook)
        if self.webhook and (parts.scheme not in ("http", "https") or not parts.netloc):
            raise UserError("monitor.on_alert.webhook must be a URL that begins with http:// or https://.")
        if not (0 < self.timeout_s <= 300 and 1 <= self.tries <= 10):
            raise UserError("monitor.on_alert: timeout_s must be above 0 and at most 300, tries between 1 and 10.")


class Notifier:
    """Tells of alerts, one after another, in a thread that starts with the first.

    Args:
        how: whom.
        failed: told what could not be told, and why; called in that thread.
    """

    def __init__(self, how: OnAlert, failed: Callable[[str], None]) -> None:
        self._how, self._failed = how, failed
        self._waiting: queue.Queue[Mapping[str, Any] | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def tell(self, alert: Mapping[str, Any]) -> None:
        """Tell of an alert soon; returns at once."""
        if not (self._how.webhook or self._how.command) or self._closing.is_set():
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rollcage-alerts", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            self._failed(f"{alert.get('rule')}: {MAX_WAITING} alerts wait already")

    def close(self) -> None:
        """Tell what still waits, for `MAX_CLOSE_S` at most; idempotent."""
        if self._thread is None or self._closing.is_set():
            return
        self._closing.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            pass  # the thread looks at `_closing` too
        self._thread.join(MAX_CLOSE_S)

    def _run(self) -> None:
        while not (self._closing.is_set() and self._waiting.empty()):
            try:
                alert = self._waiting.get(timeout=1.0)
            except queue.Empty:
                continue
            if alert is None:
                return
            for told, where in ((self._send, self._how.webhook), (self._execute, self._how.command)):
                if where:
                    try:
                        told(where, alert)
                    except (OSError, ValueError, http.client.HTTPException, subprocess.SubprocessError) as error:
                        self._failed(f"{alert.get('rule')}: {type(error).__name__}: {_reason(error)}")

    def _send(self, url: str, alert: Mapping[str, Any]) -> None:
        pause_s = FIRST_PAUSE_S
        for attempt in range(1, self._how.tries + 1):
            try:
                _post(url, json.dumps(alert, default=str).encode(), self._how.timeout_s)
                return
            except (OSError, http.client.HTTPException):
                if attempt == self._how.tries:
                    raise
            self._closing.wait(pause_s)
            pause_s *= 2

    def _execute(self, command: str, alert: Mapping[str, Any]) -> None:
        named = {name.upper(): str(alert.get(name, "")) for name in ("rule", "state", "severity")}
        process = subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **named},
        )
        try:
            process.communicate(json.dumps(alert, default=str).encode(), timeout=self._how.timeout_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        if process.returncode:
            raise OSError(f"the command ended with {process.returncode}")


def _post(url: str, body: bytes, timeout_s: float) -> None:
    """Send JSON; redirects are not followed, and what is answered is not read."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", target, body, {"Content-Type": "application/json", "User-Agent": "rollcage"})
        status = connection.getresponse().status
    finally:
        connection.close()
    if not 200 <= status < 300:
        raise OSError(f"the webhook answered {status}")


def _reason(error: BaseException) -> str:
    """Return what is wrong without the address, which may hold a secret."""
    if isinstance(error, subprocess.TimeoutExpired):
        return f"took longer than {error.timeout:.1f} s"
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error))[:300]
