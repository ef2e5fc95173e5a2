"""The manager's process: it comes back after a kill, and outlives nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollcage.errors import RollcageError
from rollcage.sandbox.chaos.keeper import Keeper

PARENT = """
import asyncio, sys
from pathlib import Path
from rollcage.sandbox.chaos.keeper import Keeper
async def main():
    keeper = Keeper(Path(sys.argv[1]), "unix:///nowhere")
    await keeper.start()
    print(keeper.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_it_comes_back_after_a_kill_and_ends_when_it_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        keeper = Keeper(tmp_path, "unix:///nowhere")
        await keeper.start()
        first = keeper.pid
        async with keeper.client() as client:
            assert await client.list_sandboxes() == []
            await keeper.kill()
            assert await client.list_sandboxes() == []
        assert keeper.pid != first
        assert keeper.num_kills == 1
        assert "socket" in keeper.files()
        assert keeper.children() == []
        assert 0 < keeper.memory_bytes() <= keeper.peak_bytes() + (1 << 20)
        assert await keeper.stop() == 0
        assert await keeper.stop() == 0
        with pytest.raises(RollcageError):
            keeper.files()

    asyncio.run(main())


def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        keeper = Keeper(tmp_path, "", (sys.executable, "-c", "import sys; sys.exit('no such thing')"))
        with pytest.raises(RollcageError, match="exit code 1: no such thing"):
            await keeper.start()
        await keeper.stop()

    asyncio.run(main())


def test_it_ends_with_whoever_started_it_even_by_kill(tmp_path: Path) -> None:
    with subprocess.Popen((sys.executable, "-c", PARENT, str(tmp_path)), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    ends_at = time.monotonic() + 20.0
    while _runs(pid):
        if time.monotonic() > ends_at:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError("it lives on")
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
