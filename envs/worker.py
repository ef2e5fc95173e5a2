"""A worker: hosts one environment and serves it over stdin and stdout, in a process or inside a container.

    python -m rollcage.envs.worker

Requests and replies are frames (`rollcage.envs.placements.frames`). A request is {"op", "args", "deadline_s"}, with op
"make", "describe", "reset", "step", "call", "set" or "close"; a reply is {"result"}, or {"error", "message"} with
error "user" or "raised". With "checkpoint": true in the request, the reply holds the environment's state after it as
"checkpoint" too (see `Instance.checkpoint`), and "files": whether files belong to it. What was measured since the last
reply comes as "told" (`rollcage.envs.placements.told`). Stdout belongs to the frames alone: whatever the environment
prints goes to stderr. The worker ends, and every process that its environment started, as soon as stdin ends,
even while the environment hangs.
"""

from __future__ import annotations

import faulthandler
import io
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from rollcage.envs.placements.frames import FrameBuffer, FrameError, encode
from rollcage.envs.placements.instance import Instance, describe_error
from rollcage.envs.placements.told import Notes
from rollcage.envs.registration import make
from rollcage.errors import UserError
from rollcage.recorder import LISTENING

_GRACE_S = 2.0  # for an environment's own close() once the client is gone


def build(
    env_id: str, kwargs: Mapping[str, Any], spec: str | None = None, sys_path: list[str] | None = None
) -> gymnasium.Env[str, str]:
    """Build the environment that a request names.

    Args:
        env_id: registered id, "module:namespace/Name-v0" included.
        kwargs: arguments for `gymnasium.make`.
        spec: JSON of the `EnvSpec` in the client, where that one registered it; None: it is registered here too.
        sys_path: where the client finds its modules; what is missing here is appended.
    """
    sys.path += [path for path in sys_path or [] if path not in sys.path]
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            __import__(module)
        if spec is None:
            return make(name, **kwargs)
        gymnasium.registry[name] = EnvSpec.from_json(spec)
        return make(name, **kwargs)
    except (ModuleNotFoundError, UserError) as error:
        cause = error.__cause__ if isinstance(error, UserError) else error
        if not isinstance(cause, ModuleNotFoundError):
            raise
        raise UserError(
            f"{env_id}: a worker process cannot import it ({cause}): put the class in a module on sys.path, "
            "or use placement 'inline'."
        ) from None


class Server:
    """Answers requests, one at a time; who makes one has a process for it alone."""

    def __init__(self) -> None:
        self._instance: Instance | None = None
        self._notes = Notes()
        LISTENING.append(self._notes)

    def answer(self, request: Mapping[str, Any]) -> bytes:
        """Do what ``request`` asks and return the frame of the reply; never raises."""
        operation = request["op"]
        # A last resort for an environment that hangs inside C code while its client is killed: no thread of this
        # process would run then, but the kernel counts its processor time and ends it.
        cpu_s = 2 * float(request["deadline_s"]) * (os.cpu_count() or 1)
        signal.setitimer(signal.ITIMER_VIRTUAL, min(cpu_s, 1e6))
        try:
            reply = {"result": self._do(operation, request["args"])}
            if request.get("checkpoint") and self._instance is not None:
                reply["checkpoint"] = self._instance.checkpoint()
                reply["files"] = bool(self._instance.env.metadata.get("checkpoint_files"))
            if told := self._notes.take():
                reply["told"] = told
            return encode(reply)
        except BaseException as error:  # noqa: BLE001  (the boundary: SystemExit out of an environment is data as well)
            kind, message = describe_error(operation, error)
            return encode({"error": kind, "message": message})
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _do(self, operation: str, args: Mapping[str, Any]) -> Any:
        if operation == "make":
            self.close()
            self._instance = Instance(build(**args))
            return None
        if self._instance is None:
            raise RuntimeError(f"{operation!r} before 'make'")
        if operation not in ("describe", "reset", "step", "call", "set", "close"):
            raise RuntimeError(f"unknown operation {operation!r}")
        return getattr(self._instance, operation)(**args)

    def close(self) -> None:
        """Close the environment, if there is one."""
        instance, self._instance = self._instance, None
        if instance is not None:
            instance.close()


def _take_stdio() -> tuple[int, int]:
    """Take stdin and stdout for the frames; the environment gets the null device and stderr in their place."""
    requests, replies = os.dup(0), os.dup(1)  # not inheritable: no child process of the environment holds them
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, replies


def _end_group() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _end_with_client(requests: int) -> None:
    """Wait in a thread until the client is gone (its end of the pipe, or the process itself), then end everything."""
    poll = select.poll()
    poll.register(requests, getattr(select, "POLLRDHUP", 0))
    parent = os.getppid()
    while os.getppid() == parent and not poll.poll(1000):
        pass
    time.sleep(_GRACE_S)
    _end_group()


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def serve(requests: int, replies: int) -> bool:
    """Answer every request; returns True after "close", False where stdin ends without it."""
    server, buffer = Server(), FrameBuffer()
    while True:
        while (request := buffer.take()) is None:
            data = os.read(requests, 1 << 20)
            if not data:
                server.close()
                return False
            buffer.feed(data)
        _write(replies, server.answer(request))
        if request["op"] == "close":
            return True


def main() -> int:
    """Serve until the client is gone."""
    requests, replies = _take_stdio()
    faulthandler.enable()  # a crash leaves its traceback on stderr, which the client keeps the end of
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.Thread(target=_end_with_client, args=(requests,), daemon=True).start()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    try:
        closed = serve(requests, replies)
    except (BrokenPipeError, FrameError) as error:
        sys.stderr.write(f"rollcage worker: {error}\n")
        closed = False
    if not closed:
        _end_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
