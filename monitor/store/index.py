"""The index beside a run's rows: curves as columns of numbers, trajectories and events as tables; safe to delete.

``RUN/index/index.sqlite`` holds where reading stands, the summaries and the places of rows, ``RUN/index/*.column``
every curve, 16 bytes a point. One process at a time takes in what was written since; all read. A killed process leaves
an index that is merely shorter: the tables' transaction says how much of each column counts. What it takes is bounded,
however long a run goes on: long curves are thinned, spans become one, distributions are counts.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt

from rollcage.errors import RollcageError
from rollcage.monitor.store.columns import SPAN, Column
from rollcage.monitor.store.intake import INDEXED, Intake, column_of
from rollcage.monitor.store.schema import BUSY_S, is_ready, open_tables
from rollcage.monitor.store.segments import Streams

_PATIENCE_S = 0.25


class IndexBusy(RollcageError):
    """Another process has been building the index for too long."""


class Index:
    """The index of one run folder; thread-safe.

    Args:
        run: the run folder. Where nothing can be written in it, the index is made in a temporary folder.
        pace_s: takes in for so long at most (twice that at first), and then not again for as long as it took, so that
            readers of a run which writes faster than it can be read never wait for its end.

    Attributes:
        is_behind: whether rows are left that were not taken in yet.
    """

    def __init__(self, run: Path, *, pace_s: float = float("inf")) -> None:
        self._run, self._pace_s = run, pace_s
        self.streams = Streams(run)
        self.folder = run / "index"
        self.is_behind = False
        self._next_s = float("-inf")
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._database: sqlite3.Connection | None = None
        self._inode = 0
        self._seen: object = None
        self._lock = threading.RLock()

    def close(self) -> None:
        """Let go of the files; idempotent, and the next use opens them again."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = None
                self.folder = self._run / "index"
            self._seen, self.is_behind = None, False

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Take in what is new, then give the tables; one thread at a time. A damaged or deleted index is made anew."""
        with self._lock:
            try:
                self.refresh()
            except (sqlite3.DatabaseError, OSError, KeyError) as error:
                if self._database is not None and _will_pass(error):
                    self._database.rollback()  # and show what there was before
                else:
                    self._discard()
                    self.refresh()
            assert self._database is not None
            yield self._database

    def column(self, kind: str, key: str) -> npt.NDArray[Any] | None:
        """Return a curve, [N] of ``at`` and ``value``; None where there is none."""
        assert self._database is not None
        found = self._database.execute(
            "SELECT id, generation, length FROM series WHERE kind = ? AND key = ?", (kind, key)
        ).fetchone()
        return None if found is None else column_of(self.folder, kind, *found[:2]).read(found[2])

    def spans(self) -> npt.NDArray[Any]:
        """Return all spans, in the order of writing."""
        spans = self.column("span", "")
        return Column(Path(), SPAN).read(0) if spans is None else spans

    def refresh(self) -> None:
        """Take in what was written since the last time; at once where nothing was, or another process is at it."""
        with self._lock:
            if self._database is not None and time.monotonic() < self._next_s and self._is_there():
                return
            if self._database is not None and self._seen == self.streams.ends(INDEXED) and self._is_there():
                return
            if self._database is not None and not self._is_there():
                self.close()
            if self._temporary is None:
                if os.access(self.folder if self.folder.exists() else self._run, os.W_OK):
                    self.folder.mkdir(exist_ok=True)
                else:
                    self._temporary = tempfile.TemporaryDirectory(prefix="rollcage-index-")
                    self.folder = Path(self._temporary.name)
            began_s = time.monotonic()
            while True:
                with (self.folder / "lock").open("a") as lock:
                    if _claim(lock.fileno()):
                        limit_s = self._pace_s * (2 if self._database is None else 1)
                        intake = Intake(self.streams, self.folder, self._open())
                        starts_s, now = time.monotonic(), self.streams.ends(INDEXED)  # now that no other one takes in
                        self.is_behind = not intake.take_in(now, limit_s)
                        self._seen = None if self.is_behind else now
                        if self._pace_s < float("inf"):
                            self._next_s = 2 * time.monotonic() - starts_s
                        return
                waited_s = time.monotonic() - began_s
                if waited_s > _PATIENCE_S and (self._database is not None or is_ready(self.folder / "index.sqlite")):
                    self._open()  # and show what the other one has got so far
                    return
                if waited_s > BUSY_S:
                    raise IndexBusy(f"{self.folder} is being built by another process for over {BUSY_S:.0f} s.")
                time.sleep(0.005)

    def _is_there(self) -> bool:
        try:
            return (self.folder / "index.sqlite").stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            path = self.folder / "index.sqlite"
            database = open_tables(path)
            try:
                for kind, *which, length in database.execute("SELECT kind, id, generation, length FROM series"):
                    if not column_of(self.folder, kind, *which).holds(length):
                        raise sqlite3.DatabaseError("a column is shorter than the tables say")
            except BaseException:
                database.close()
                raise
            self._database, self._inode = database, path.stat().st_ino
        return self._database

    def _discard(self) -> None:
        self.close()
        for path in (self._run / "index").glob("*"):
            if path.name != "lock":
                path.unlink(missing_ok=True)


def _will_pass(error: Exception) -> bool:
    """Whether the index is whole, and merely cannot be gone on with now: the disk is full, or another process reads."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    code = getattr(error, "sqlite_errorcode", None)
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _claim(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
