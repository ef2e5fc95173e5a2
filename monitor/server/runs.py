"""The runs below one folder: found by name only, each read through one reader that all viewers share."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.requests import Request

from rollcage.errors import UserError
from rollcage.monitor.server.answers import dumped
from rollcage.monitor.server.errors import Refused
from rollcage.monitor.store import RunReader, find_runs

RESCAN_S = 2.0
"""The folder is looked through again after so long."""
FRESH_S = 0.5
"""What one viewer was just told, another is told too: viewers cost little, and nobody sees more than twice a second."""
MAX_READERS = 64
"""Runs that are kept open; the one that was looked at longest ago is closed."""
PACE_S = 0.2
"""So long a run is read on before a viewer is answered; what is left is read later, so that a long run which nobody has
read before, or one that writes faster than it can be read, is shown as far as it is known."""
MAX_ANSWERS = 256
MAX_KEPT_BYTES = 2 * 1024 * 1024
"""Larger answers are made anew each time: what is kept is bounded."""


PATIENCE_S = 0.4
"""So long viewers wait for a newer answer than the one that is there."""
NUM_MAKERS = 4
"""Threads that make answers: more would only wait for each other."""


@dataclass(slots=True)
class _Answer:
    body: bytes = b""
    at_s: float = float("-inf")
    making: Future[bytes] | None = None


class Runs:
    """All runs below a folder; thread-safe.

    An id is the path of a run folder below ``folder`` as it was found there. No part of a request is ever made a path.

    Args:
        folder: where runs are; may be a run itself.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._found: dict[str, Path] = {}
        self._found_at_s = float("-inf")
        self._readers: OrderedDict[str, RunReader] = OrderedDict()
        self._answers: OrderedDict[tuple[str, ...], _Answer] = OrderedDict()
        self._makers = ThreadPoolExecutor(NUM_MAKERS, "rollcage-monitor")

    def ids(self) -> dict[str, Path]:
        """Return id -> run folder, the newest first. Links that lead out of the folder are left out."""
        with self._lock:
            if time.monotonic() - self._found_at_s > RESCAN_S:
                root = self.folder.resolve()
                self._found = {
                    _id(path, self.folder): path
                    for path in find_runs(self.folder)
                    if path.resolve().is_relative_to(root)
                }
                self._found_at_s = time.monotonic()
            return dict(self._found)

    def reader(self, run_id: str) -> RunReader:
        """Return the reader of a run.

        Raises:
            Refused: there is no such run (404), or it cannot be read (422).
        """
        path = self.ids().get(run_id)
        if path is None:
            raise Refused("there is no such run.", 404)
        with self._lock:
            reader = self._readers.get(run_id)
            if reader is None:
                try:
                    reader = RunReader(path, pace_s=PACE_S)
                except UserError as error:
                    raise Refused(str(error), 422) from None
                self._readers[run_id] = reader
            self._readers.move_to_end(run_id)
            while len(self._readers) > MAX_READERS:
                self._readers.popitem(last=False)[1].close()
            return reader

    def shared(
        self,
        key: tuple[str, ...],
        made: Callable[[], Any],
        *,
        fresh_s: float = FRESH_S,
        meanwhile: bytes = b"",
        wait_s: float = PATIENCE_S,
    ) -> bytes:
        """Return ``made()`` as JSON, or what another viewer got for the same ``key`` less than ``fresh_s`` ago.

        Viewers who ask at the same moment wait for one answer. Where that takes longer than ``wait_s``, since a run
        writes faster than it can be read, they get the one before, else ``meanwhile``; where there is none, they wait.
        """
        with self._lock:
            answer = self._answers.setdefault(key, _Answer())
            self._answers.move_to_end(key)
            while len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
            if time.monotonic() - answer.at_s <= fresh_s:
                return answer.body
            if answer.making is None or answer.making.done():
                answer.making = self._makers.submit(_make, answer, made)
            making = answer.making
        try:
            return making.result(wait_s if answer.body or meanwhile else None)
        except TimeoutError:
            return answer.body or meanwhile

    def close(self) -> None:
        """Close all readers; idempotent."""
        self._makers.shutdown(cancel_futures=True)
        with self._lock:
            while self._readers:
                self._readers.popitem()[1].close()


def _make(answer: _Answer, made: Callable[[], Any]) -> bytes:
    body = dumped(made())
    answer.body, answer.at_s = (body, time.monotonic()) if len(body) <= MAX_KEPT_BYTES else (b"", float("-inf"))
    return body


def _id(path: Path, folder: Path) -> str:
    return path.name if path == folder else path.relative_to(folder).as_posix()


def runs_of(request: Request) -> Runs:
    """Return the runs that are shown."""
    runs: Runs = request.app.state.runs
    return runs
