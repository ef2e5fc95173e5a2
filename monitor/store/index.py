"""The index beside a run's rows: curves as columns of numbers, trajectories and events as tables; safe to delete.

``RUN/index/index.sqlite`` holds where reading stands, the summaries and the places of rows, ``RUN/index/*.column``
every curve, 16 bytes a point. One process at a time takes in what was written since; all read. A killed process leaves
an index that is merely shorter: the tables' transaction says how much of each column counts.
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
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy.typing as npt

from rollcage.errors import RollcageError
from rollcage.monitor.store.columns import POINT, SPAN, Column
from rollcage.monitor.store.segments import START, Place, Streams, closed_segments
from rollcage.monitor.store.summary import (
    SUMMARY,
    SUMMARY_COLUMNS,
    Row,
    labelled,
    numbers,
    parse,
    searchable,
    summarize,
)

INDEXED = ("metrics", "events", "timeline", "trajectories", "annotations")

_FORMAT = 1
_BATCH_BYTES = 16 << 20
_PATIENCE_S = 0.25
_BUSY_S = 30.0
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS streams(name TEXT PRIMARY KEY, segment INTEGER, offset INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS series(id INTEGER PRIMARY KEY, kind TEXT, key TEXT, name TEXT, length INTEGER,
    UNIQUE(kind, key));
CREATE TABLE IF NOT EXISTS texts(id INTEGER PRIMARY KEY, text TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS events(id INTEGER PRIMARY KEY, segment INTEGER, offset INTEGER, kind TEXT, time REAL);
CREATE INDEX IF NOT EXISTS events_by_kind ON events(kind);
CREATE TABLE IF NOT EXISTS trajectories(row INTEGER PRIMARY KEY, segment INTEGER, offset INTEGER,
    {", ".join(f'"{name}" {kind}' for name, kind in SUMMARY.items())});
CREATE INDEX IF NOT EXISTS trajectories_by_task ON trajectories(task_id);
CREATE TABLE IF NOT EXISTS conversations(row INTEGER PRIMARY KEY, text TEXT);
CREATE TABLE IF NOT EXISTS annotations(id TEXT, time REAL, segment INTEGER, offset INTEGER);
CREATE INDEX IF NOT EXISTS annotations_by_id ON annotations(id);
PRAGMA user_version = {_FORMAT};
"""


class IndexBusy(RollcageError):
    """Another process has been building the index for too long."""


class Index:
    """The index of one run folder; thread-safe.

    Args:
        run: the run folder. Where nothing can be written in it, the index is made in a temporary folder.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self.streams = Streams(run)
        self.folder = run / "index"
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
            self._seen = None

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

    def column(self, series_id: int, length: int) -> npt.NDArray[Any]:
        """Return a curve, [N] of ``at`` and ``value``."""
        return self._points(series_id).read(length)

    def spans(self) -> npt.NDArray[Any]:
        """Return all spans, in the order of writing."""
        assert self._database is not None
        row = self._database.execute("SELECT length FROM series WHERE kind = 'span'").fetchone()
        return self._spans.read(row[0] if row else 0)

    def refresh(self) -> None:
        """Take in what was written since the last time; at once where nothing was, or another process is at it."""
        with self._lock:
            now = [self.streams.end(stream) for stream in INDEXED]
            if self._database is not None and self._seen == now and self._is_there():
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
                        self._open()
                        self._take_in()
                        self._seen = now
                        return
                waited_s = time.monotonic() - began_s
                if waited_s > _PATIENCE_S and (self._database is not None or self._is_ready()):
                    self._open()  # and show what the other one has got so far
                    return
                if waited_s > _BUSY_S:
                    raise IndexBusy(f"{self.folder} is being built by another process for over {_BUSY_S:.0f} s.")
                time.sleep(0.005)

    def _is_there(self) -> bool:
        try:
            return (self.folder / "index.sqlite").stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def _is_ready(self) -> bool:
        """Whether the tables are there."""
        path = self.folder / "index.sqlite"
        if not path.is_file():
            return False
        with closing(sqlite3.connect(path, timeout=5.0)) as database:
            return bool(database.execute("PRAGMA user_version").fetchone()[0] == _FORMAT)

    def _open(self) -> None:
        if self._database is not None:
            return
        path = self.folder / "index.sqlite"
        database = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False)
        try:
            found = database.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, _FORMAT):
                raise sqlite3.DatabaseError(f"the index has format {found}")
            database.execute("PRAGMA synchronous = OFF")
            if found == 0:
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(_SCHEMA)
            for series_id, kind, length in database.execute("SELECT id, kind, length FROM series"):
                if not (self._spans if kind == "span" else self._points(series_id)).holds(length):
                    raise sqlite3.DatabaseError("a column is shorter than the tables say")
        except BaseException:
            database.close()
            raise
        self._database, self._inode = database, path.stat().st_ino

    def _discard(self) -> None:
        self.close()
        for path in (self._run / "index").glob("*"):
            if path.name != "lock":
                path.unlink(missing_ok=True)

    def _take_in(self) -> None:
        assert self._database is not None
        places = {name: (segment, offset) for name, segment, offset in self._database.execute("SELECT * FROM streams")}
        for stream in INDEXED:
            place: Place = places.get(stream, START)
            if self.streams.end(stream) < place:
                raise KeyError(f"{stream} is shorter than it was")  # another run in the same folder
            while self._take_in_some(stream, place):
                place = self._database.execute(
                    "SELECT segment, offset FROM streams WHERE name = ?", (stream,)
                ).fetchone()
        self._forget_dropped()

    def _take_in_some(self, stream: str, place: Place) -> bool:
        """Take in a batch of rows, as one transaction; returns whether there may be more."""
        assert self._database is not None
        batch = _Batch(self._database)
        size = 0
        end: Place | None = None
        for at, line in self.streams.lines(stream, place):
            row = parse(line)
            if row is not None:
                try:
                    batch.add(stream, at, row)
                except (KeyError, TypeError, ValueError):  # not one of ours: what can be read still is
                    pass
            end = at[0], at[1] + len(line)
            size += len(line)
            if size >= _BATCH_BYTES:
                break
        if end is None:
            return False
        with self._database:
            for series_id, length, points in batch.points():
                length = self._points(series_id).append(length, points)
                self._database.execute("UPDATE series SET length = ? WHERE id = ?", (length, series_id))
            if batch.spans:
                series_id, length = batch.series("span", "", "")
                length = self._spans.append(length, batch.spans)
                self._database.execute("UPDATE series SET length = ? WHERE id = ?", (length, series_id))
            batch.write()
            self._database.execute("INSERT OR REPLACE INTO streams VALUES (?, ?, ?)", (stream, *end))
        return size >= _BATCH_BYTES

    @property
    def _spans(self) -> Column:
        return Column(self.folder / "spans.column", SPAN)

    def _points(self, series_id: int) -> Column:
        return Column(self.folder / f"{series_id}.column", POINT)

    def _forget_dropped(self) -> None:
        """Forget rows whose segment was dropped; curves stay."""
        assert self._database is not None
        with self._database:
            for stream in ("events", "trajectories", "annotations"):
                oldest = min(closed_segments(self._run, stream), default=None)
                if oldest is not None and oldest > 1:
                    if stream == "trajectories":
                        self._database.execute(
                            "DELETE FROM conversations WHERE row IN (SELECT row FROM trajectories WHERE segment < ?)",
                            (oldest,),
                        )
                    self._database.execute(f"DELETE FROM {stream} WHERE segment < ?", (oldest,))


class _Batch:
    """Rows on their way into the index."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self.spans: list[tuple[float, float, int, int]] = []
        self._found: dict[tuple[str, str], list[tuple[float, float]]] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._text_ids: dict[str, int] = {}
        self._events: list[tuple[Any, ...]] = []
        self._trajectories: list[tuple[Any, ...]] = []
        self._texts: list[tuple[str]] = []
        self._annotations: list[tuple[Any, ...]] = []

    def add(self, stream: str, place: Place, row: Row) -> None:
        if stream == "metrics":
            version = row.get("policy_version", 0)
            found = self._found
            for name, value in numbers(row).items():
                points = found.get(("metric", name))
                if points is None:
                    points = found["metric", name] = []
                    self._names["metric", name] = name
                points.append((version, float(value)))
        elif stream == "timeline":
            self._add_timeline(row)
        elif stream == "events":
            self._events.append((*place, row.get("event", ""), row.get("time", 0.0)))
        elif stream == "trajectories":
            summary = summarize(row)
            self._trajectories.append((*place, *(summary[name] for name in SUMMARY)))
            self._texts.append((searchable(row),))
        else:
            self._annotations.append((str(row.get("id", "")), row.get("time", 0.0), *place))

    def _add_timeline(self, row: Row) -> None:
        if "span" in row:
            track, what = self._text(str(row["track"])), self._text(str(row["span"]))
            self.spans.append((float(row["start_s"]), float(row["end_s"]), track, what))
            return
        kind = "gauge" if "gauge" in row else "histogram"
        if kind not in row:
            return
        name = str(row[kind])
        labels = {key: value for key, value in row.items() if key not in ("time", kind, "value", "at_s")}
        key = labelled(name, labels)
        at_s = row.get("at_s")
        self._names[kind, key] = name
        self._found.setdefault((kind, key), []).append(
            (row.get("time", 0.0) if at_s is None else float(at_s), float(row["value"]))
        )

    def _text(self, text: str) -> int:
        number = self._text_ids.get(text)
        if number is None:
            self._database.execute("INSERT OR IGNORE INTO texts(text) VALUES (?)", (text,))
            number = self._text_ids[text] = int(
                self._database.execute("SELECT id FROM texts WHERE text = ?", (text,)).fetchone()[0]
            )
        return number

    def series(self, kind: str, key: str, name: str) -> tuple[int, int]:
        """Return (id, length so far) of a curve."""
        self._database.execute(
            "INSERT OR IGNORE INTO series(kind, key, name, length) VALUES (?, ?, ?, 0)", (kind, key, name)
        )
        found = self._database.execute(
            "SELECT id, length FROM series WHERE kind = ? AND key = ?", (kind, key)
        ).fetchone()
        return int(found[0]), int(found[1])

    def points(self) -> Iterator[tuple[int, int, list[tuple[float, float]]]]:
        """Yield (series, length so far, new points)."""
        for (kind, key), points in self._found.items():
            yield *self.series(kind, key, self._names[kind, key]), points

    def write(self) -> None:
        """Put the rows into their tables."""
        run = self._database.executemany
        run("INSERT INTO events(segment, offset, kind, time) VALUES (?, ?, ?, ?)", self._events)
        marks = ", ".join("?" * (2 + len(SUMMARY)))
        run(f"INSERT INTO trajectories(segment, offset, {SUMMARY_COLUMNS}) VALUES ({marks})", self._trajectories)
        run("INSERT INTO conversations(text) VALUES (?)", self._texts)
        run("INSERT INTO annotations VALUES (?, ?, ?, ?)", self._annotations)


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
