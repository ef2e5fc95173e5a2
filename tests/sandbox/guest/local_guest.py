"""An agent of this machine, for the guest's tests. ROLLCAGE_AGENT_PYTHON may name another interpreter for it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from rollcage.sandbox.drivers.process_agent import AgentPipe
from rollcage.sandbox.guest.agent.processes import list_processes
from rollcage.sandbox.guest.channel import AgentGuest, open_agent
from rollcage.sandbox.guest.program import agent_command
from rollcage.sandbox.types import ExecRequest, ExecResult


@asynccontextmanager
async def local_guest(folder: Path) -> AsyncIterator[AgentGuest]:
    """Yield a connection to an agent that works in ``folder``; what it writes on stderr, such as a traceback, fails."""
    pipes: set[AgentPipe] = set()
    log = folder / ".agent.log"
    python = os.environ.get("ROLLCAGE_AGENT_PYTHON", sys.executable)
    pipe = await AgentPipe.start(agent_command(python), {"PATH": os.environ["PATH"]}, folder, log, pipes)
    guest = await open_agent(pipe)
    try:
        yield guest
    finally:
        await guest.close()
        assert not pipes
        assert log.read_text() == ""
        log.unlink()


def with_guest(folder: Path, test: Callable[[AgentGuest], Awaitable[None]]) -> None:
    """Run a test against a local agent."""

    async def main() -> None:
        async with local_guest(folder) as guest:
            await test(guest)

    asyncio.run(main())


async def run(guest: AgentGuest, command: str | tuple[str, ...], timeout_s: float = 20.0) -> ExecResult:
    """Run a command."""
    return await guest.exec(ExecRequest(command, timeout_s=timeout_s))


def find_processes(word: str) -> list[int]:
    """Return the living processes with that word in their command line."""
    found = []
    for pid in list_processes():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words and pid != os.getpid():
            found.append(pid)
    return found


async def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Wait until it holds, or fail."""
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, "it did not come true"
        await asyncio.sleep(0.01)
