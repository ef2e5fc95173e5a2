"""The run that is attacked: its process, the processes and containers that it has, and how it is started again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rollcage.errors import RollcageError, require
from rollcage.monitor.store.segments import START, Streams
from rollcage.monitor.store.summary import parse
from rollcage.trainer.checkpoints import newest_checkpoint

ROLES = {
    "worker": "rollcage.envs.worker",
    "engine": "rollcage.trainer.engines.vllm_worker",
    "learner": "rollcage.trainer.learner.worker",
}
"""What may be killed beside the trainer itself, by what its command line holds."""

LOG_TAIL = 2000
MAX_ENDS = 3
"""A run that ends so often in a row, each time before its next update, will not make one."""


class Training:
    """``rollcage train`` in a folder, started again from its newest checkpoint as often as it ends.

    Args:
        run: the run folder.
        arguments: of the first ``rollcage train``; ``--out`` is added.
        patience_s: longest wait for a start, an update, an end.

    Attributes:
        resumed_from: the newest checkpoint at each start, by its folder's name, None where there was none.
        ended_by_itself: how often the process gave up, rather than being killed.
        leftovers: processes that outlived their run, in words.
        num_updates: that the run has told of, those that were made again after a resume included.
    """

    def __init__(self, run: Path, arguments: Sequence[str], patience_s: float) -> None:
        self._psutil: Any = require("psutil", "train")
        self._run, self._arguments, self._patience_s = run, arguments, patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._state = run.parent / "sandboxes"
        self._read_to = START
        self.num_updates = self._version = 0
        self.resumed_from: list[str | None] = []
        self.ended_by_itself = 0
        self.leftovers: list[str] = []

    def start(self) -> None:
        """Start it, or go on with it."""
        checkpoint = newest_checkpoint(self._run)
        self.resumed_from.append(checkpoint.name if checkpoint else None)
        begun = (self._run / "config.json").is_file()
        what = ["--resume", str(self._run)] if begun else [*self._arguments, "--out", str(self._run)]
        self._run.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rollcage", "train", *what],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"ROLLCAGE_SANDBOX": str(self._state)},
            )

    def version(self) -> int:
        """The newest policy version that the run has told of; 0 before the first."""
        self._read_on()
        return self._version

    async def next_update(self) -> None:
        """Wait until the run has made an update after now; start it again where it has ended.

        Raises:
            RollcageError: it makes none in time, or ends again and again.
        """
        num_updates, deadline = self._read_on(), asyncio.get_running_loop().time() + self._patience_s
        num_ends = 0
        while self._read_on() <= num_updates:
            if self._process is None or self._process.poll() is not None:
                self.ended_by_itself, num_ends = self.ended_by_itself + 1, num_ends + 1
                if num_ends == MAX_ENDS:
                    raise RollcageError(f"it ends without an update, {MAX_ENDS} times now: {self._tail()}")
                self.start()
            if asyncio.get_running_loop().time() > deadline:
                raise RollcageError(f"no update within {self._patience_s:g} s: {self._tail()}")
            await asyncio.sleep(0.2)

    def victims(self, role: str) -> list[int]:
        """Return the ids of the run's processes that play a role; the trainer's own for "trainer"."""
        if self._process is None:
            return []
        if role == "trainer":
            return [self._process.pid]
        return [child.pid for child in self._children() if ROLES[role] in self._command(child)]

    async def containers(self) -> list[str]:
        """Return the names of the run's containers, as the daemon tells them."""
        from rollcage.sandbox.drivers.docker import DockerDriver
        from rollcage.sandbox.opening import default_endpoint

        store = self._state / "id"
        if not store.is_file():
            return []
        driver = DockerDriver(default_endpoint())
        try:
            return [each.name for each in await driver.list_containers(store.read_text().strip())]
        finally:
            await driver.close()

    async def kill_container(self, name: str) -> None:
        """Kill one of them, as ``docker kill`` does."""
        from rollcage.sandbox.drivers.docker import DockerDriver
        from rollcage.sandbox.opening import default_endpoint

        driver = DockerDriver(default_endpoint())
        try:
            await driver.kill(name)
        finally:
            await driver.close()

    async def kill(self) -> None:
        """``kill -9`` the trainer, note what outlives it, and go on from the newest checkpoint."""
        if self._process is None:
            return
        children = self._children()
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        await self._note_leftovers(children)
        self.start()

    async def stop(self) -> None:
        """End it as Ctrl-C does, and note what outlives it; idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        children = self._descendants(process.pid)
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, self._patience_s)
        except subprocess.TimeoutExpired:
            self.leftovers.append("the trainer itself, which did not end when it was told to")
            process.kill()
            await asyncio.to_thread(process.wait)
        await self._note_leftovers(children)

    @property
    def log(self) -> Path:
        """What all starts of the run have said."""
        return self._run.parent / "train.log"

    def _tail(self) -> str:
        text = self.log.read_text(errors="replace")[-LOG_TAIL:] if self.log.is_file() else ""
        return f"the end of {self.log}:\n{text}"

    def _read_on(self) -> int:
        """Return the updates that the run has told of; reads what is new, for hours of rows are asked for often."""
        for (segment, offset), line in Streams(self._run).lines("metrics", self._read_to):
            self._read_to = segment, offset + len(line)
            if row := parse(line):
                self.num_updates, self._version = self.num_updates + 1, int(row["policy_version"])
        return self.num_updates

    def _children(self) -> list[Any]:
        return [] if self._process is None else self._descendants(self._process.pid)

    def _descendants(self, pid: int) -> list[Any]:
        try:
            found: list[Any] = self._psutil.Process(pid).children(recursive=True)
        except self._psutil.NoSuchProcess:
            return []
        return found

    def _command(self, process: Any) -> str:
        try:
            return " ".join(process.cmdline())
        except self._psutil.Error:
            return ""

    async def _note_leftovers(self, children: Iterable[Any]) -> None:
        """Give them a moment to end with their parent; name those that have not."""
        known = {child.pid: self._command(child) for child in children}
        _, alive = await asyncio.to_thread(self._psutil.wait_procs, list(children), 20.0)
        self.leftovers += [f"process {child.pid}: {known[child.pid]}" for child in alive]
