"""What the manager must not forget: sandboxes, their history and their snapshots, in one SQLite file.

Calls are short synchronous transactions on the event loop's thread: one that changes a sandbox and tells its event
takes 0.15 ms, 8 ms at worst (write-ahead log, no fsync: a killed process loses nothing, and what a machine that loses
power forgets is found again on the hosts), which is less than a hop to a thread and back, and leaves no order in doubt.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollcage.errors import UserError
from rollcage.sandbox.errors import SandboxError
from rollcage.sandbox.types import Event, SandboxInfo, SandboxSpec, Snapshot, State

RUNNING, PAUSED, DELETED = "running", "paused", "deleted"
"""What a sandbox is wanted to be."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS sandboxes (
    id TEXT PRIMARY KEY, state TEXT NOT NULL, desired TEXT NOT NULL, generation INTEGER NOT NULL, host TEXT NOT NULL,
    expires_at REAL NOT NULL, created_at REAL NOT NULL, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS deleted (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, time REAL NOT NULL, created_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, sandbox_id TEXT NOT NULL, kind TEXT NOT NULL,
    data TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS history ON events (sandbox_id, number);
CREATE TABLE IF NOT EXISTS snapshots (
    id TEXT PRIMARY KEY, sandbox_id TEXT NOT NULL, image TEXT NOT NULL, host TEXT NOT NULL, time REAL NOT NULL);
CREATE TABLE IF NOT EXISTS drained (host TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS forgotten (up_to REAL NOT NULL);
"""

MOVE_DELETED = """
INSERT OR IGNORE INTO deleted (id, time, created_at) SELECT id, ?, created_at FROM sandboxes WHERE state = 'DELETED'
"""

UPSERT = """
INSERT INTO sandboxes VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
    state = excluded.state, desired = excluded.desired, generation = excluded.generation, host = excluded.host,
    expires_at = excluded.expires_at, record = excluded.record
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A sandbox as it is kept.

    Attributes:
        info: what its users may know.
        desired: `RUNNING`, `PAUSED` or `DELETED`: what the reconciler works towards.
        image: what its life starts from where that is a snapshot; "": the specification's image.
        origin: the snapshot image that it was forked from; "": none.
        pooled: it waits in the warm pool for somebody to claim it.
        log_tail: the last lines of the life that ended.
    """

    info: SandboxInfo
    desired: str = RUNNING
    image: str = ""
    origin: str = ""
    pooled: bool = False
    log_tail: str = ""

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Row:
        """Undo `to_json`; raises ValueError, KeyError or TypeError where it is none."""
        data = json.loads(text)
        info = data["info"]
        ports = {int(port): published for port, published in info["ports"].items()}
        info |= {"spec": SandboxSpec.from_json(info["spec"]), "state": State(info["state"]), "ports": ports}
        return cls(**{**data, "info": SandboxInfo(**info)})


class Store:
    """The file ``manager.db`` in ``folder``, and the right to be the only manager there.

    Args:
        folder: made where it does not exist.
        clock: seconds since the epoch.

    Attributes:
        id: names this store on everything that its manager makes; kept beside the database, such that a lost database
            can be rebuilt from the hosts.

    Raises:
        UserError: another manager has the folder.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(self._lock, 20, 0).decode() or "?"
            os.close(self._lock)
            raise UserError(
                f"another manager (process {pid}) has the folder {folder}: "
                "share one (rollcage sandbox serve), stop it, or give this one another folder"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        self.id = _store_id(folder / "id")
        self._path = folder / "manager.db"
        self._db = _open(self._path)

    def save(self, row: Row, kind: str, data: Mapping[str, Any] | None = None) -> None:
        """Keep a sandbox and tell, in the same transaction, what happened to it; ``kind`` "" tells nothing.

        Of one that is DELETED only the id is kept, and its events.

        Raises:
            SandboxError: the file cannot be written; nothing is changed.
        """
        info = row.info
        place = (info.id, info.state, row.desired, info.generation, info.host, info.expires_at, info.created_at)
        with self._transaction():
            if info.state is State.DELETED:  # its events say how it was
                self._db.execute("DELETE FROM sandboxes WHERE id = ?", (info.id,))
                gone = (info.id, self._clock(), info.created_at)
                self._db.execute("INSERT OR IGNORE INTO deleted (id, time, created_at) VALUES (?, ?, ?)", gone)
            else:
                self._db.execute(UPSERT, (*place, row.to_json()))
            if kind:
                self.tell(info.id, kind, data)

    def tell(self, sandbox_id: str, kind: str, data: Mapping[str, Any] | None = None) -> None:
        """Add an event."""
        values = (self._clock(), sandbox_id, kind, json.dumps(data or {}))
        self._db.execute("INSERT INTO events (time, sandbox_id, kind, data) VALUES (?, ?, ?, ?)", values)

    def rows(self) -> list[Row]:
        """Return the sandboxes that are not deleted, oldest first.

        What cannot be read (another version wrote it) is forgotten: their hosts know what it said.
        """
        rows = []
        for sandbox_id, record in self._db.execute("SELECT id, record FROM sandboxes ORDER BY rowid").fetchall():
            try:
                rows.append(Row.from_json(record))
            except (ValueError, KeyError, TypeError) as error:
                self._db.execute("DELETE FROM sandboxes WHERE id = ?", (sandbox_id,))
                self.tell(sandbox_id, "unreadable", {"error": repr(error), "record": record})
        return rows

    def knows(self, sandbox_id: str, created_at: float) -> bool:
        """Whether there is, or ever was, such a sandbox: a container of one that is unknown is one that was lost.

        Args:
            sandbox_id: whose.
            created_at: as its container says; one that is no newer than those that `prune` forgot counts as one of
                them.
        """
        found = self._db.execute(
            "SELECT 1 FROM sandboxes WHERE id = :id UNION ALL SELECT 1 FROM deleted WHERE id = :id"
            " UNION ALL SELECT 1 FROM forgotten WHERE up_to >= :created_at LIMIT 1",
            {"id": sandbox_id, "created_at": created_at},
        )
        return found.fetchone() is not None

    def prune(self, *, history_s: float, max_events: int, max_deleted: int, limit: int = 500) -> int:
        """Forget the oldest events and deleted sandboxes, ``limit`` of each at most; returns how many went.

        Args:
            history_s: those that are older go.
            max_events, max_deleted: so many may stay, the newest.
            limit: such that one call takes about a millisecond.
        """
        before, num_gone = self._clock() - history_s, 0
        for table, most in (("events", max_events), ("deleted", max_deleted)):
            first = self._db.execute(f"SELECT number, time FROM {table} ORDER BY number LIMIT 1").fetchone()
            last = self._db.execute(f"SELECT number FROM {table} ORDER BY number DESC LIMIT 1").fetchone()
            if first is None or (first[1] >= before and first[0] > last[0] - most):
                continue
            oldest = f"number IN (SELECT number FROM {table} ORDER BY number LIMIT {limit})"
            where = f"{oldest} AND (time < ? OR number <= ?)"
            values = (before, last[0] - most)
            with self._transaction():
                if table == "deleted":
                    found = self._db.execute(f"SELECT max(created_at) FROM deleted WHERE {where}", values).fetchone()
                    self._forget_up_to(found[0])
                num_gone += self._db.execute(f"DELETE FROM {table} WHERE {where}", values).rowcount
        return num_gone

    def _forget_up_to(self, created_at: float | None) -> None:
        """Keep in mind that of sandboxes that were created until then not every id is known any more."""
        (known,) = self._db.execute("SELECT max(up_to) FROM forgotten").fetchone()
        if created_at is not None and (known is None or created_at > known):
            self._db.execute("DELETE FROM forgotten")
            self._db.execute("INSERT INTO forgotten VALUES (?)", (created_at,))

    def events(self, *, sandbox_id: str | None = None, after: int = 0, limit: int = -1) -> list[Event]:
        """Return the events with a number above ``after``, oldest first; ``limit`` of them at most."""
        where, values = ("", ()) if sandbox_id is None else (" AND sandbox_id = ?", (sandbox_id,))
        found = self._db.execute(
            f"SELECT * FROM events WHERE number > ?{where} ORDER BY number LIMIT ?", (after, *values, limit)
        )
        return [Event(number, when, whose, kind, json.loads(data)) for number, when, whose, kind, data in found]

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot and tell its event."""
        with self._transaction():
            values = (snapshot.id, snapshot.sandbox_id, snapshot.image, snapshot.host, snapshot.time)
            self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", values)
            self.tell(snapshot.sandbox_id, "snapshot", {"snapshot": snapshot.id})

    def remove_snapshot(self, snapshot_id: str) -> None:
        """Forget a snapshot; nothing where there is none."""
        self._db.execute("DELETE FROM snapshots WHERE id = ?", (snapshot_id,))

    def snapshots(self) -> list[Snapshot]:
        """Return the snapshots, oldest first."""
        return [Snapshot(*values) for values in self._db.execute("SELECT * FROM snapshots ORDER BY time, rowid")]

    def drain(self, host: str, on: bool) -> None:
        """Keep in mind that a host gets no new sandboxes."""
        self._db.execute(
            "INSERT OR REPLACE INTO drained VALUES (?)" if on else "DELETE FROM drained WHERE host = ?", (host,)
        )

    def drained(self) -> set[str]:
        """Return the hosts that get no new sandboxes."""
        return {host for (host,) in self._db.execute("SELECT host FROM drained")}

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Change all or nothing.

        Raises:
            SandboxError: the file cannot be written: what cannot be kept must not happen.
        """
        try:
            with self._db:
                self._db.execute("BEGIN IMMEDIATE")
                yield
        except sqlite3.OperationalError as error:
            raise SandboxError(f"the manager's store {self._path} cannot be written: {error}") from error

    def close(self) -> None:
        """Close the file and let another manager have the folder; idempotent."""
        if self._lock >= 0:
            self._db.close()
            os.close(self._lock)
            self._lock = -1


def _store_id(path: Path) -> str:
    if not path.exists():
        made = path.with_suffix(".new")
        made.write_text(secrets.token_hex(6))
        made.replace(path)
    return path.read_text().strip()


def _open(path: Path) -> sqlite3.Connection:
    """Open the database; one that is damaged is put aside, for the hosts know what it knew."""
    try:
        return _connect(path)
    except sqlite3.DatabaseError:
        for suffix in ("", "-wal", "-shm"):
            damaged = path.with_name(path.name + suffix)
            if damaged.exists():
                damaged.replace(path.with_name(f"{path.name}.damaged{suffix}"))
        return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None, timeout=5.0)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        if database.execute("PRAGMA quick_check").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError(f"{path} is damaged")
        database.executescript(SCHEMA)
        with database:  # earlier versions kept whole rows of the deleted
            database.execute(MOVE_DELETED, (time.time(),))
            database.execute("DELETE FROM sandboxes WHERE state = 'DELETED'")
    except sqlite3.DatabaseError:
        database.close()
        raise
    return database
