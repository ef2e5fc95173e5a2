"""An environment that makes a sandbox itself, wherever it runs: on plain processes, without containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollcage.envs import RowTasks, TextEnv, Turn, register
from rollcage.envs.tasks import Task
from rollcage.sandbox import SandboxSpec, SyncSandbox, SyncSandboxes


class Shell(TextEnv):
    """Every action is a command in the episode's sandbox; "die" ends this process.

    Args:
        folder: where each instance makes the manager's folder.
    """

    def __init__(self, folder: str, **kwargs: Any) -> None:
        super().__init__(RowTasks("shell", {"train": [{"number": number} for number in range(4)]}), **kwargs)
        number = sum(1 for _ in Path(folder).iterdir())
        while True:
            own = Path(folder) / str(number)
            try:
                own.mkdir()
            except FileExistsError:
                number += 1
            else:
                break
        self._sandboxes = SyncSandboxes(folder=own, endpoints=("process:",))
        self._box: SyncSandbox | None = None

    def begin(self, task: Task) -> str:
        if self._box is None:
            self._box = self._sandboxes.create(SandboxSpec())
        return "$"

    def advance(self, action: str) -> Turn:
        if action == "die":
            import os

            os._exit(7)
        assert self._box is not None
        done = self._box.exec(action)
        return Turn(done.stdout.decode(), reward=1.0, terminated=True, success=done.ok)

    def close(self) -> None:
        if self._box is not None:
            self._box.delete()
            self._box = None
        self._sandboxes.close()


register("zoo/Shell-v0", Shell)
