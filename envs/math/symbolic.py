"""Symbolic equality of two answers by math-verify, in bounded time and memory, whatever the text.

Comparisons run in child processes (`rollcage.envs.math.symbolic_worker`), which start at the first use and are kept for
the next. A comparison that takes too long or too much kills its child, never the caller; then there is a fresh child.
Each process has its own children (a forked worker starts anew), every thread may call, and children end with their
parent, even where it is killed.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Literal

from rollcage.errors import RollcageError, require

Verdict = Literal["equal", "different", "timeout", "failed"]

MAX_CHILDREN = 4
START_TIMEOUT_S = 60.0
WALL_FACTOR = 4.0
"""A comparison may take so many times its processor time on the clock: a busy machine must not change verdicts."""

_WORKER = Path(__file__).with_name("symbolic_worker.py")
_PASSED_ON = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class SymbolicUnavailable(RollcageError):
    """No child process could be started; the message holds the reason."""


def compare(gold: str, answer: str, timeout_s: float) -> Verdict:
    """Return whether ``answer`` is mathematically equal to ``gold``, both LaTeX without dollar signs.

    Args:
        gold: the right answer.
        answer: any text.
        timeout_s: processor time that the comparison may take, in seconds.

    Returns:
        "equal", "different", "timeout" (undecided within the time), or "failed" (unreadable, or past the memory limit).

    Raises:
        MissingExtra: math-verify is not installed.
        SymbolicUnavailable: no child process could be started.
    """
    return _pool().compare(gold, answer, timeout_s)


class _Child:
    """One child process; used by one thread at a time."""

    def __init__(self) -> None:
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_WORKER)],  # -P: this folder's math.py must not hide the standard one
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent
            )
        except OSError as error:
            raise SymbolicUnavailable(f"cannot start the process that compares answers: {error}.") from None
        self._pending = b""
        if self._read_line(time.monotonic() + START_TIMEOUT_S) is None:
            self.close()
            require("math_verify", "math")
            raise SymbolicUnavailable(
                f"the process that compares answers did not start (exit code {self._process.returncode})."
            )

    def compare(self, gold: str, answer: str, timeout_s: float) -> Verdict | None:
        """Return the verdict; None where somebody else killed the process (the system, short of memory, say)."""
        wall_s = WALL_FACTOR * timeout_s
        request = {"gold": gold, "answer": answer, "cpu_s": timeout_s, "wall_s": wall_s}
        try:
            self._write(json.dumps(request).encode() + b"\n")
        except OSError:
            return self._ended()
        line = self._read_line(time.monotonic() + wall_s + 1.0)  # the child's own timer comes first
        if line is None:
            return self._ended()
        reply = json.loads(line)
        if "error" in reply:
            return "failed"
        return "equal" if reply["equal"] else "different"

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the process and take its exit code; idempotent."""
        self._process.kill()
        self._process.wait()
        self.drop()

    def drop(self) -> None:
        """Let go of the pipes only: in a forked process the child belongs to the parent."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        if self._process.returncode is None:
            self._process.returncode = 0  # else the destructor warns of a running child that is not ours

    def _ended(self) -> Verdict | None:
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:  # past its deadline and still running
            code = -signal.SIGALRM
        self.close()
        if code == -signal.SIGKILL:
            return None
        return "timeout" if code in (-signal.SIGPROF, -signal.SIGALRM) else "failed"

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[self._process.stdin.write(view) or 0 :]

    def _read_line(self, deadline: float) -> bytes | None:
        """The next line, or None where the child ended or the deadline (of `time.monotonic`) has passed."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                data = self._process.stdout.read(65536)
                if not data:
                    return None
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line


class _Pool:
    """The idle children of this process, and a limit on how many work at once."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self._children: set[_Child] = set()
        self._idle: list[_Child] = []
        self._slots = threading.Semaphore(MAX_CHILDREN)
        atexit.register(self.close)

    def compare(self, gold: str, answer: str, timeout_s: float) -> Verdict:
        with self._slots:
            for take in (self._take, self._start):  # one that was killed while idle may pass for alive: ask a new one
                child = take()
                try:
                    verdict = child.compare(gold, answer, timeout_s)
                except BaseException:
                    child.close()  # interrupted: the answer still to come would be taken for that of the next pair
                    raise
                finally:
                    self._put_back(child)
                if verdict is not None:
                    return verdict
        return "failed"

    def _take(self) -> _Child:
        while self._idle:
            try:
                child = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            if child.alive:
                return child
            self._put_back(child)
        return self._start()

    def _start(self) -> _Child:
        child = _Child()
        self._children.add(child)
        return child

    def _put_back(self, child: _Child) -> None:
        if child.alive:
            self._idle.append(child)
        else:
            child.close()
            self._children.discard(child)

    def close(self) -> None:
        """End all children, unless this is a forked copy of the process that started them."""
        if os.getpid() == self.process_id:
            for child in tuple(self._children):
                child.close()

    def drop(self) -> None:
        """Let go of all children in a forked copy."""
        for child in self._children:
            child.drop()


_lock = threading.Lock()
_current: _Pool | None = None


def _pool() -> _Pool:
    global _current
    with _lock:
        if _current is None:
            _current = _Pool()
        return _current


def _after_fork() -> None:
    """A forked process must not hold the pipes of its parent's children: they are to see the parent's end."""
    global _current, _lock
    _lock = threading.Lock()
    if _current is not None:
        _current.drop()
        _current = None


os.register_at_fork(after_in_child=_after_fork)
