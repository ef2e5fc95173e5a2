"""A worker process and its pipes, without blocking: both the asynchronous and the vector client stand on it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from typing import Any

from rollcage.envs.placements.base import EnvConfig, EnvDied, EnvRaised, EnvTimeout, PlacementError
from rollcage.envs.placements.frames import FrameBuffer, FrameError, encode, plain
from rollcage.envs.registration import find_spec
from rollcage.errors import UserError

_LOG_BYTES = 4_000  # of the worker's stderr, kept for the message when it dies
_REAP_S = 5.0
_CHUNK_BYTES = 1 << 18


def make_request(config: EnvConfig) -> dict[str, Any]:
    """Return the arguments of the worker's "make" for ``config``, so that it builds what this process would build.

    Raises:
        UserError: unknown id, a class that no other process can import, or arguments that are not JSON-able.
    """
    spec = find_spec(config.env_id)
    try:
        description = spec.to_json()
    except ValueError:
        raise UserError(
            f"{config.env_id}: its class stands in __main__ or inside a function, where a worker process cannot import "
            "it: put it in a module, or use placement 'inline'."
        ) from None
    except TypeError as error:
        raise UserError(f"{config.env_id}: the registered arguments cannot go to a worker process ({error}).") from None
    try:
        plain(dict(config.kwargs))
    except (TypeError, ValueError) as error:
        raise UserError(f"{config.env_id}: the arguments cannot go to a worker process ({error}).") from None
    sys_path = [os.path.abspath(path) for path in sys.path]
    return {"env_id": config.env_id, "kwargs": dict(config.kwargs), "spec": description, "sys_path": sys_path}


def request(operation: str, args: dict[str, Any], deadline_s: float, *, checkpoint: bool = False) -> bytes:
    """Return the frame of one request; ``checkpoint``: the reply shall hold the environment's state after it.

    Raises:
        EnvRaised: ``args`` cannot be sent (not JSON-able, or too long).
    """
    try:
        more = {"checkpoint": True} if checkpoint else {}
        return encode({"op": operation, "args": args, "deadline_s": deadline_s, **more})
    except (TypeError, ValueError, FrameError) as error:
        raise EnvRaised(f"{operation}: the arguments cannot be sent to the worker process: {error}") from None


def result_of(reply: Any) -> Any:
    """Return the result in a reply, or raise the error in it."""
    if not isinstance(reply, dict):
        raise EnvDied(f"the worker process answered {reply!r:.100}, which is no reply.")
    if "error" not in reply:
        return reply["result"]
    raise (UserError if reply["error"] == "user" else EnvRaised)(reply["message"])


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # Only while the leader is not reaped: after that its number may belong to somebody else.
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    _kill_group(process)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_S)


class WorkerProcess:
    """One worker in a process group of its own. Nothing here blocks, except `end` until a killed process is reaped.

    A process that is not ended by hand is ended when this object goes or the interpreter exits.
    """

    def __init__(self) -> None:
        # -P: a module of the current directory must not stand in for one of the standard library.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rollcage.envs.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.stdin = self._process.stdin.fileno()
        self.stdout = self._process.stdout.fileno()
        self.stderr = self._process.stderr.fileno()
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(descriptor, False)
        self.pid = self._process.pid
        self._buffer, self._unsent, self._log = FrameBuffer(), memoryview(b""), bytearray()
        self._finalizer = weakref.finalize(self, _end, self._process)

    def send(self, frame: bytes) -> None:
        """Start to send one frame; `write` goes on with it."""
        self._unsent = memoryview(frame)
        self.write()

    def write(self) -> bool:
        """Send what the pipe takes; returns whether all has been sent. A closed pipe shows when the reply is read."""
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self.stdin, self._unsent) :]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            self._unsent = memoryview(b"")
        return True

    @property
    def sending(self) -> bool:
        """Whether a part of the last frame is still to be sent."""
        return bool(self._unsent)

    def read(self) -> Any | None:
        """Return the reply, or None where it has not all come yet.

        Raises:
            EnvDied: the worker is gone, or wrote something that is not a reply.
        """
        try:
            data = os.read(self.stdout, _CHUNK_BYTES)
        except BlockingIOError:
            return None
        if not data:
            raise EnvDied("the worker process has closed its end.")
        self._buffer.feed(data)
        try:
            return self._buffer.take()
        except FrameError as error:
            raise EnvDied(f"the worker process wrote something else than replies to its pipe: {error}") from None

    def read_log(self) -> bool:
        """Take what the worker has written to stderr; returns False once it is closed."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.stderr, _CHUNK_BYTES):
                self._log += data
                del self._log[:-_LOG_BYTES]
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL to the worker and all that it started; a process that had ended keeps its own status."""
        _kill_group(self._process)

    def gone(self) -> bool:
        """Return whether the worker has ended (and reap it)."""
        return self._process.poll() is not None

    def end(self) -> str:
        """Kill and reap the worker, close its pipes, and return how it had ended; idempotent."""
        if self._finalizer.alive:
            self.kill()
            with contextlib.suppress(OSError):
                self.read_log()
            self._finalizer()
        return self._epitaph()

    def _epitaph(self) -> str:
        status = self._process.returncode
        if status is None:
            cause = f"process {self.pid} could not be ended"
        elif status < 0:
            cause = f"killed by {signal.Signals(-status).name}"
        else:
            cause = f"exit code {status}"
        log = self._log.decode("utf-8", "replace").strip()
        return f"{cause}; its last words:\n{log}" if log else cause


def ask_all(
    workers: Sequence[WorkerProcess], frames: Sequence[bytes], deadline_s: float
) -> list[Any | PlacementError | UserError]:
    """Send each worker its frame, wait until all have answered, and return results and errors in the same order.

    A worker whose error is `EnvTimeout` or `EnvDied` has been ended.
    """
    outcomes: list[Any | PlacementError | UserError] = [None] * len(workers)
    waiting: dict[int, int] = {}
    poll = select.poll()
    for position, (worker, frame) in enumerate(zip(workers, frames, strict=True)):
        worker.send(frame)
        for descriptor in (worker.stdout, worker.stderr):
            waiting[descriptor] = position
            poll.register(descriptor, select.POLLIN)
        if worker.sending:
            waiting[worker.stdin] = position
            poll.register(worker.stdin, select.POLLOUT)
    open_ = set(range(len(workers)))
    end_s = time.monotonic() + deadline_s

    def settle(position: int, outcome: Any | PlacementError | UserError) -> None:
        outcomes[position] = outcome
        open_.discard(position)
        worker = workers[position]
        for descriptor in (worker.stdin, worker.stdout, worker.stderr):
            if waiting.pop(descriptor, None) is not None:
                poll.unregister(descriptor)

    while open_ and (left_s := end_s - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left_s * 1000):
            if descriptor not in waiting:
                continue
            position = waiting[descriptor]
            worker = workers[position]
            if descriptor == worker.stdin:
                done = worker.write()
            elif descriptor == worker.stderr:
                done = not worker.read_log()
            else:
                done = False
                try:
                    if (reply := worker.read()) is not None:
                        settle(position, result_of(reply))
                except EnvDied as error:
                    settle(position, EnvDied(f"{error} {worker.end()}"))
                except (EnvRaised, UserError) as error:
                    settle(position, error)
            if done:
                del waiting[descriptor]
                poll.unregister(descriptor)
    for position in sorted(open_):
        settle(position, EnvTimeout(f"no answer within {deadline_s:g} s; {workers[position].end()}"))
    return outcomes
