"""The dashboard beside a run: a process of its own that ends with the run, however that ends."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rollcage.errors import UserError, require

START_S = 30.0
"""Longest wait for its address."""
END_S = 10.0
"""Longest wait for its end; then it is killed."""


@contextlib.contextmanager
def dashboard(runs: Path) -> Iterator[str]:
    """Serve the dashboard of all runs in a folder meanwhile; gives its address, with the token for actions.

    It holds the other end of a pipe and ends when that is closed, so that none is left behind by a run that is killed.

    Raises:
        MissingExtra: the extra ``monitor`` is not installed.
        UserError: it did not start.
    """
    for module in ("fastapi", "uvicorn"):
        require(module, "monitor")
    runs.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "rollcage", "monitor", "--until-stdin-ends", "--", str(runs)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is the run's: the last curves are still to be seen while it stops
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], START_S)
        line = process.stdout.readline() if ready else ""
        if not line.startswith("monitor: "):
            raise UserError("the dashboard did not start: see what it wrote above, or leave out --monitor.")
        yield line.removeprefix("monitor: ").strip()
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
