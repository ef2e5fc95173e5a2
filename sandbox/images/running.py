"""Commands of this machine that make an image, or what goes into one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from rollcage.sandbox.errors import ImageMissing

Progress = Callable[[str], None]
"""Takes one line without its end."""


def silent(_line: str) -> None:
    """Show no progress."""


async def run(command: Sequence[str], image: str, progress: Progress, timeout_s: float) -> None:
    """Run a command, and show every line that it writes; ``image`` is what it is for.

    Raises:
        ImageMissing: it failed, with its last line, or did not end in time.
    """
    last = ""
    try:
        async with asyncio.timeout(timeout_s), process(command) as running:
            assert running.stdout is not None
            async for line in running.stdout:
                last = line.decode(errors="replace").strip() or last
                progress(last)
            code = await running.wait()
    except TimeoutError as error:
        raise ImageMissing(f"{image}: {command[0]} did not end within {timeout_s:g} s; last: {last}") from error
    if code != 0:
        raise ImageMissing(f"{image}: {os.path.basename(command[0])} failed: {last}")


@asynccontextmanager
async def process(command: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a process in a group of its own, which does not outlive the block."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT if command[0] != "tar" else None,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if process.stdout is not None:
            await process.stdout.read()  # to its end: then the pipe is closed
