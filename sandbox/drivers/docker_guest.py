"""The way into a container: the agent over one long-lived exec, or, where there is no Python, plain execs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rollcage.sandbox.drivers.docker_api import Engine, one_line
from rollcage.sandbox.drivers.docker_exec import ExecPipe
from rollcage.sandbox.errors import DeadlineExceeded, GuestLost, SandboxUnavailable
from rollcage.sandbox.guest.base import Guest
from rollcage.sandbox.guest.channel import open_agent
from rollcage.sandbox.guest.fallback import ExecGuest
from rollcage.sandbox.guest.program import agent_command
from rollcage.sandbox.types import SandboxSpec

from aiodocker import DockerError  # isort: skip  (docker_api says how to get it where it is missing)

_NOT_THERE = ("executable file not found", "no such file or directory")
_AGENT_S = 10.0


async def connect_guest(
    engine: Engine, name: str, spec: SandboxSpec, unavailable: Callable[[str, str], Awaitable[SandboxUnavailable]]
) -> Guest:
    """See `rollcage.sandbox.drivers.base.Driver.connect`; ``unavailable`` makes the error."""
    async with engine.call(f"start the agent in {name}") as docker:
        try:
            pipe = await ExecPipe.open(docker, engine.frost, name, agent_command(), stdin=True)
            try:
                return await open_agent(pipe, timeout_s=min(_AGENT_S, engine.call_timeout_s))
            except GuestLost as error:
                why = f"{one_line(error)} {one_line(pipe.stderr.decode(errors='replace'))}"
                if await pipe.exit_code() == 127 or any(words in why for words in _NOT_THERE):
                    return ExecGuest(engine, name, spec)
            except DeadlineExceeded as error:
                why = one_line(error)
        except DockerError as error:
            why = one_line(error.message)
            if error.status not in (404, 409) and "OCI runtime exec failed" not in why and "is not running" not in why:
                raise
            if any(words in why for words in _NOT_THERE):
                return ExecGuest(engine, name, spec)
    raise await unavailable(name, why)
