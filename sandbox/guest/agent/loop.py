"""The loop: file descriptors, timers, child processes and the connection to the host."""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import time

from rollcage.sandbox.guest.agent.archives import ArchiveError
from rollcage.sandbox.guest.agent.frames import MAGIC, MAX_ERROR_CHARS, FrameReader, ProtocolError, pack_frame
from rollcage.sandbox.guest.agent.processes import KILL_S, adopt_orphans
from rollcage.sandbox.guest.agent.vitals import Vitals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rollcage.sandbox.guest.agent.job import Job
    from rollcage.sandbox.guest.agent.shell import Shell

STATUS_FD = 9
"""Where a shell reports; one digit, since a POSIX shell can redirect no other."""
_OOM_SCORE = b"300"
"""The kernel takes commands for memory before it takes the agent."""


class Loop:
    """The loop. What a frame asks for is a method ``on_...`` of the class that is made of it."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self.stdin, self.stdout = stdin, stdout
        self.selector = selectors.DefaultSelector()
        self.vitals = Vitals()
        self.jobs: dict[int, Job] = {}
        self.sessions: dict[int, Shell] = {}
        self.mains: dict[int, Callable[[int], None]] = {}
        self.timers: dict[object, tuple[float, Callable[[], None]]] = {}
        self._nonce = f"{os.getpid():x}-{os.urandom(4).hex()}".encode()
        self._reader = FrameReader()
        self._to_send = bytearray()
        self._is_blocked = False
        self._running = True
        self._reserved = self._oom_fd = -1
        self._own_oom_score = b""

    def run(self) -> None:
        """Serve until stdin ends; then kill what still runs for it."""
        adopt_orphans()
        self._reserved = os.open(os.devnull, os.O_RDONLY)
        if self._reserved != STATUS_FD:
            os.dup2(self._reserved, STATUS_FD, inheritable=False)
        try:
            self._oom_fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self._own_oom_score = os.read(self._oom_fd, 16).strip()
        except OSError:
            pass
        waking, woken = os.pipe()
        for fd in (waking, woken, self.stdout):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.selector.register(waking, selectors.EVENT_READ, lambda: self._on_wake(waking))
        self.selector.register(self.stdin, selectors.EVENT_READ, self._on_stdin)
        self._to_send += MAGIC
        self.send({"op": "hello", "pid": os.getpid(), "python": sys.version.split()[0]})
        self._flush()
        import subprocess  # noqa: F401  (`spawn` needs it; loading it takes as long as the host's answer)

        while self._running:
            self._flush()
            now = time.monotonic()
            timeout = max(0.0, min(when for when, _ in self.timers.values()) - now) if self.timers else None
            for key, _ in self.selector.select(timeout):
                key.data()
            if self.timers:
                now = time.monotonic()
                for key_, (when, call) in list(self.timers.items()):
                    if when <= now and self.timers.get(key_) == (when, call):
                        del self.timers[key_]
                        call()
        self._kill_everything()

    def at(self, key: object, when: float, call: Callable[[], None]) -> None:
        """Call ``call`` at that time; replaces the timer of ``key``."""
        self.timers[key] = (when, call)

    # -- processes

    def spawn(
        self,
        argv: list[bytes],
        env: dict[bytes, bytes],
        cwd: bytes | None,
        fds: tuple[int, int, int],
        *,
        status_fd: int = -1,
        name: bytes | list[bytes] = b"",
    ) -> int:
        """Start a program in a session of its own; returns its pid."""
        import subprocess

        if status_fd >= 0:
            os.dup2(status_fd, STATUS_FD)
        self._set_oom_score(_OOM_SCORE)
        try:
            process = subprocess.Popen(
                [name, *argv[1:]] if isinstance(name, bytes) and name else argv,
                executable=argv[0],
                stdin=fds[0],
                stdout=fds[1],
                stderr=fds[2],
                env=env,
                cwd=cwd,
                start_new_session=True,
                pass_fds=(STATUS_FD,) if status_fd >= 0 else (),
            )
        finally:
            if self._oom_fd >= 0:
                self._set_oom_score(self._own_oom_score)
            if status_fd >= 0:
                os.dup2(self._reserved, STATUS_FD, inheritable=False)
        process.returncode = 0  # reaped here, not by subprocess
        return process.pid

    def fork(self, function: Callable[[], None], fds: tuple[int, int, int]) -> int:
        """Start a child that calls ``function`` with those descriptors as stdin, stdout and stderr."""
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            self._set_oom_score(_OOM_SCORE)
            for target, fd in enumerate(fds):
                os.dup2(fd, target)
            for entry in os.listdir("/proc/self/fd"):
                if int(entry) > 2:
                    try:
                        os.close(int(entry))
                    except OSError:
                        pass
            function()
            code = 0
        except ArchiveError as error:
            os.write(2, json.dumps({"kind": error.kind, "message": str(error)}).encode())
        except BaseException as error:  # noqa: BLE001  (a child must end here, whatever happens)
            os.write(2, json.dumps({"kind": "InternalError", "message": repr(error)}).encode())
        finally:
            os._exit(code)

    def _set_oom_score(self, score: bytes) -> None:
        if self._oom_fd >= 0:
            try:
                os.write(self._oom_fd, score)
            except OSError:
                self._oom_fd = -1

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            on_exit = self.mains.pop(pid, None)
            if on_exit is not None:
                on_exit(status)

    def _kill_everything(self) -> None:
        """Kill what belongs to running commands and to sessions; what ended commands left behind lives on."""
        until = time.monotonic() + KILL_S
        while time.monotonic() < until:
            left = sum(job.kill_once() for job in self.jobs.values())
            left += sum(shell.kill_once(everything=True) for shell in self.sessions.values())
            if not left:
                return
            time.sleep(0.005)
            while self.mains:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                self.mains.pop(pid, None)

    # -- the connection

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a frame when this round of the loop is over."""
        self._to_send += pack_frame(header, payload)

    def send_error(self, task_id: Any, kind: str, message: str) -> None:
        """Send an error; ``kind`` is the name of the host's class."""
        self.send({"op": "error", "id": task_id, "kind": kind, "message": message[:MAX_ERROR_CHARS]})

    def _flush(self) -> None:
        try:
            while self._to_send:
                num_bytes = os.write(self.stdout, memoryview(self._to_send)[: 1 << 18])
                del self._to_send[:num_bytes]
        except BlockingIOError:
            pass
        except OSError:
            self._running = False  # nobody listens
            return
        if bool(self._to_send) != self._is_blocked:
            self._is_blocked = not self._is_blocked
            self._watch_output(self._is_blocked)

    def _watch_output(self, on: bool) -> None:
        if self.stdout == self.stdin:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if on else 0)
            self.selector.modify(self.stdin, events, self._on_stdin)
        elif on:
            self.selector.register(self.stdout, selectors.EVENT_WRITE, lambda: None)
        else:
            self.selector.unregister(self.stdout)

    def _on_signal(self, *_: object) -> None:
        self._running = False

    def _on_wake(self, fd: int) -> None:
        try:
            os.read(fd, 4096)
        except BlockingIOError:
            pass
        self._reap()

    def _on_stdin(self) -> None:
        try:
            data = os.read(self.stdin, 1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._running = False
            return
        try:
            frames = self._reader.feed(data)
        except ProtocolError as error:
            sys.stderr.write(f"the agent was sent nonsense: {error}\n")
            self._running = False
            return
        for header, payload in frames:
            self._on_frame(header, payload)

    def _on_frame(self, header: dict[str, Any], payload: bytes) -> None:
        handler = getattr(self, "on_" + str(header.get("op")), None)
        try:
            if handler is None:
                raise ValueError("no such operation")
            handler(header, payload)
        except Exception as error:  # noqa: BLE001  (a bad request must not end the other commands)
            self.send_error(header.get("id"), "InternalError", f"{type(error).__name__}: {error}")
