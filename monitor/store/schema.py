"""The index's tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from rollcage.monitor.store.summary import SUMMARY

FORMAT = 2
BUSY_S = 30.0
"""Longest wait for another process."""
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS streams(name TEXT PRIMARY KEY, segment INTEGER, offset INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS series(id INTEGER PRIMARY KEY, kind TEXT, key TEXT, name TEXT, length INTEGER DEFAULT 0,
    generation INTEGER DEFAULT 0, UNIQUE(kind, key));
CREATE TABLE IF NOT EXISTS histograms(key TEXT PRIMARY KEY, bounds TEXT, counts TEXT, sum REAL, min REAL, max REAL)
    WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS texts(id INTEGER PRIMARY KEY, text TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS events(id INTEGER PRIMARY KEY, segment INTEGER, offset INTEGER, kind TEXT, time REAL);
CREATE INDEX IF NOT EXISTS events_by_kind ON events(kind);
CREATE TABLE IF NOT EXISTS trajectories(row INTEGER PRIMARY KEY, segment INTEGER, offset INTEGER,
    {", ".join(f'"{name}" {kind}' for name, kind in SUMMARY.items())});
CREATE INDEX IF NOT EXISTS trajectories_by_task ON trajectories(task_id);
CREATE TABLE IF NOT EXISTS conversations(row INTEGER PRIMARY KEY, text TEXT);
CREATE TABLE IF NOT EXISTS annotations(id TEXT, time REAL, segment INTEGER, offset INTEGER);
CREATE INDEX IF NOT EXISTS annotations_by_id ON annotations(id);
PRAGMA user_version = {FORMAT};
"""


def is_ready(path: Path) -> bool:
    """Return whether the tables are there."""
    if not path.is_file():
        return False
    with closing(sqlite3.connect(path, timeout=5.0)) as database:
        return bool(database.execute("PRAGMA user_version").fetchone()[0] == FORMAT)


def open_tables(path: Path) -> sqlite3.Connection:
    """Open the tables; made where they are missing.

    Raises:
        sqlite3.DatabaseError: they are those of another version of this program, or damaged.
    """
    database = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False)
    try:
        found = database.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, FORMAT):
            raise sqlite3.DatabaseError(f"the index has format {found}")
        database.execute("PRAGMA synchronous = OFF")
        if found == 0:
            database.execute("PRAGMA journal_mode = WAL")
            database.executescript(_SCHEMA)
    except BaseException:
        database.close()
        raise
    return database
