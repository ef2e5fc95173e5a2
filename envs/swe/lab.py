"""The sandboxes of this process's environments: one manager for all, opened at the first need, closed at the last.

Where a sandbox service runs for this user, it is used. Else every process has a manager of its own, with a folder of
its own: the first numbered one that no other process has. So what a killed process left behind is found and deleted by
the next one that takes its number.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path

from rollcage.errors import UserError, require
from rollcage.sandbox.base import Sandboxes
from rollcage.sandbox.errors import SandboxError
from rollcage.sandbox.sync import SyncSandbox, SyncSandboxes
from rollcage.sandbox.types import SandboxSpec

_NUM_FOLDERS = 4096
_labs: dict[tuple[str, ...], _Lab] = {}
_lock = threading.RLock()


class Lease:
    """An environment's share of the sandboxes: those that it made end with it.

    Args:
        endpoints: Docker daemons, or ``process:``; see `rollcage.sandbox.opening.open_manager`.

    Raises:
        UserError: an endpoint is none, or the Docker client is not installed.
    """

    def __init__(self, endpoints: Sequence[str] = ()) -> None:
        self._boxes: dict[str, SyncSandbox] = {}
        key = tuple(endpoints)
        with _lock:
            lab = _labs.get(key)
            if lab is None or lab.pid != os.getpid():  # after a fork it is the parent's
                lab = _labs[key] = _Lab(key)
            lab.leased.append(self._boxes)
        lab.sweep()
        self._lab: _Lab | None = lab
        self._abandoned = weakref.finalize(self, lab.abandoned.append, self._boxes)
        self._abandoned.atexit = False

    def create(self, spec: SandboxSpec, *, deadline_s: float) -> SyncSandbox:
        """Return a new sandbox; raises as `Sandboxes.create`."""
        if self._lab is None:
            raise UserError("these sandboxes are closed: make a new environment.")
        self._lab.sweep()
        box = self._lab.sandboxes.create(spec, deadline_s=deadline_s)
        self._boxes[box.id] = box
        return box

    def delete(self, box: SyncSandbox) -> None:
        """End a sandbox of this lease; one that is gone already is no error."""
        self._boxes.pop(box.id, None)
        with suppress(SandboxError):
            box.delete()

    def close(self) -> None:
        """End all of them; the manager goes with the last lease. Idempotent."""
        lab, self._lab = self._lab, None
        if lab is not None and self._abandoned.detach() is not None:
            lab.end(self._boxes)


class _Lab:
    """A manager, and who uses it."""

    def __init__(self, endpoints: tuple[str, ...]) -> None:
        self.pid = os.getpid()
        self.leased: list[dict[str, SyncSandbox]] = []
        """Of every lease, those that nobody closed included."""
        self.abandoned: deque[dict[str, SyncSandbox]] = deque()
        """Of leases that nobody closed: a finalizer may run in any thread, and must not wait."""
        self._claim: TextIOWrapper | None = None
        self._key = endpoints
        if not any(endpoint.startswith("process:") for endpoint in endpoints):
            require("aiodocker", "sandbox")
        try:
            self.sandboxes = SyncSandboxes(self._open)
            self._clear()
        except BaseException:
            self._let_go()
            raise
        atexit.register(self.close)

    async def _open(self) -> Sandboxes:
        from rollcage.sandbox.client.address import default_folder
        from rollcage.sandbox.opening import find_service, open_manager

        folder = default_folder()
        if not self._key and (service := await find_service(folder)) is not None:
            return service
        own, self._claim = _claim(folder / "envs")
        return await open_manager(own, self._key)

    def _clear(self) -> None:
        """Delete what the process left that had the folder before."""
        if self._claim is not None:
            for info in self.sandboxes.list_sandboxes():
                with suppress(SandboxError):
                    self.sandboxes.attach(info.id).delete()

    def sweep(self) -> None:
        """End what leases left that nobody closed."""
        while self.abandoned:
            with suppress(IndexError):
                self.end(self.abandoned.popleft())

    def end(self, boxes: dict[str, SyncSandbox]) -> None:
        """End a lease: its sandboxes, and with the last one the manager."""
        if self.pid != os.getpid():
            return
        _delete(boxes)
        with _lock:
            self.leased = [others for others in self.leased if others is not boxes]
            if not self.leased:
                self.close()

    def close(self) -> None:
        """End all sandboxes and the manager; idempotent."""
        if self.pid != os.getpid():
            return
        with _lock:
            if _labs.get(self._key) is self:
                del _labs[self._key]
            atexit.unregister(self.close)
            for boxes in self.leased:  # at the interpreter's end there may be some
                _delete(boxes)
            self.leased.clear()
            self.abandoned.clear()
            self.sandboxes.close()
            self._let_go()

    def _let_go(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim = None


def _delete(boxes: dict[str, SyncSandbox]) -> None:
    for box in [*boxes.values()]:
        with suppress(SandboxError):
            box.delete()
    boxes.clear()


def _claim(root: Path) -> tuple[Path, TextIOWrapper]:
    """Return a folder that no other process has, and the open file that keeps it so."""
    for number in range(_NUM_FOLDERS):
        folder = root / str(number)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (folder / "claim").open("w", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return folder, file
        except BlockingIOError:
            file.close()
    raise UserError(
        f"{root}: {_NUM_FOLDERS} processes have sandboxes already; use one service: rollcage sandbox serve."
    )
