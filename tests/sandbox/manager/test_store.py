"""The store: what goes in comes out, also after its file was closed or lost."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rollcage.sandbox.manager.store import PAUSED, Row, Store
from rollcage.sandbox.types import Probe, RestartPolicy, SandboxInfo, SandboxSpec, Snapshot, State


def row(sandbox_id: str) -> Row:
    spec = SandboxSpec(
        command=("a", "b"),
        env={"é": "ü"},
        ports=(80,),
        network=("host:1",),
        restart=RestartPolicy.RESTORE,
        probe=Probe(1.5),
    )
    info = SandboxInfo(
        sandbox_id, "key", "ann", spec, "one", State.STOPPED, 3, 1.5, 2.5, 9.5, {80: 40080}, 2, "why", 137, True
    )
    return Row(info, PAUSED, "image:1", "image:0", True, "log\n")


def test_rows_come_back_as_they_were_and_in_order(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for sandbox_id in ("b", "a", "c"):
        store.save(row(sandbox_id), "created")
    store.save(replace(row("a"), desired="running"), "resumed", {"n": 1})
    store.save(gone("c", 1.5), "")
    store.close()
    store = Store(tmp_path)
    assert store.rows() == [row("b"), replace(row("a"), desired="running")]
    assert store.knows("c", 1.5), "an id is never used again"
    assert not store.knows("d", 1.5)
    store.close()
    store.close()


def test_events_are_numbered_and_filtered(tmp_path: Path) -> None:
    store = Store(tmp_path, clock=lambda: 12.5)
    store.save(row("a"), "created", {"x": [1, "é"]})
    store.tell("", "orphan", {"container": "c"})
    store.tell("a", "ready")
    events = store.events()
    assert [(event.sandbox_id, event.kind, event.time) for event in events] == [
        ("a", "created", 12.5),
        ("", "orphan", 12.5),
        ("a", "ready", 12.5),
    ]
    assert events[0].data == {"x": [1, "é"]}
    assert [event.kind for event in store.events(sandbox_id="a", after=events[0].number)] == ["ready"]
    assert [event.kind for event in store.events(after=events[0].number, limit=1)] == ["orphan"]
    store.close()


def test_a_save_that_fails_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.save(row("a"), "created")
    with pytest.raises(TypeError):
        store.save(replace(row("a"), desired="running"), "told", {"no": object()})
    assert store.rows() == [row("a")]
    store.save(row("b"), "created")
    assert len(store.events()) == 2
    store.close()


def test_snapshots_and_drained_hosts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    snapshots = [Snapshot(f"s{n}", "a", f"i:{n}", "one", float(n)) for n in range(3)]
    for snapshot in reversed(snapshots):
        store.add_snapshot(snapshot)
    assert store.snapshots() == snapshots
    store.remove_snapshot("s1")
    store.remove_snapshot("s1")
    assert store.snapshots() == [snapshots[0], snapshots[2]]
    store.drain("one", True)
    store.drain("one", True)
    store.drain("two", True)
    store.drain("two", False)
    assert store.drained() == {"one"}
    store.close()


def gone(sandbox_id: str, created_at: float) -> Row:
    info = row(sandbox_id).info
    return Row(replace(info, state=State.DELETED, created_at=created_at))


def test_history_is_kept_for_so_long_and_so_many_the_newest(tmp_path: Path) -> None:
    now = 0.0
    store = Store(tmp_path, clock=lambda: now)
    store.save(row("alive"), "created")
    for number in range(100):
        now = float(number)
        store.save(gone(f"s{number}", now - 0.5), "deleted")
    limits = {"history_s": 1000.0, "max_events": 1000, "max_deleted": 1000}
    assert store.prune(**limits) == 0
    now = 1050.0
    assert store.prune(**limits, limit=20) == 40, "a few at a time"
    while store.prune(**limits, limit=20):
        pass
    assert [event.sandbox_id for event in store.events()] == [f"s{number}" for number in range(50, 100)]
    assert store.prune(**{**limits, "max_events": 30, "max_deleted": 10}) == 20 + 40
    assert [event.sandbox_id for event in store.events()] == [f"s{number}" for number in range(70, 100)]
    assert [found.info.id for found in store.rows()] == ["alive"], "who lives is never forgotten"
    store.close()


def test_a_forgotten_sandbox_is_never_taken_for_a_lost_one(tmp_path: Path) -> None:
    store = Store(tmp_path, clock=lambda: 100.0)
    for number in range(5):
        store.save(gone(f"s{number}", float(number)), "deleted")
    store.prune(history_s=1000.0, max_events=1000, max_deleted=2)
    store.close()
    store = Store(tmp_path)
    assert all(store.knows(f"s{number}", float(number)) for number in range(5))
    assert store.knows("of their time", 2.0)
    assert not store.knows("newer", 2.5), "the store lost it, as when a machine loses its power"
    store.close()
    (tmp_path / "manager.db").unlink()
    store = Store(tmp_path)
    assert not store.knows("s0", 0.0), "a store that was lost as a whole is rebuilt as a whole"
    store.close()


def test_a_store_of_an_earlier_version_is_made_slim(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "manager.db")) as database, database:
        database.execute(
            "CREATE TABLE sandboxes (id TEXT PRIMARY KEY, state TEXT NOT NULL, desired TEXT NOT NULL,"
            " generation INTEGER NOT NULL, host TEXT NOT NULL, expires_at REAL NOT NULL, created_at REAL NOT NULL,"
            " record TEXT NOT NULL)"
        )
        for sandbox_id, state in (("a", "READY"), ("b", "DELETED")):
            values = (sandbox_id, state, "running", 1, "one", 0.0, 1.5, row(sandbox_id).to_json())
            database.execute("INSERT INTO sandboxes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
    store = Store(tmp_path)
    assert store.rows() == [row("a")]
    assert store.knows("b", 1.5)
    assert not store.knows("c", 1.5)
    store.close()


def test_looking_for_what_to_forget_costs_little(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(300):
        store.save(gone(f"s{number}", 1.0), "deleted", {"log_tail": "x" * 1000})
    begin_s = time.perf_counter()
    for _ in range(100):
        assert store.prune(history_s=1000.0, max_events=1000, max_deleted=1000) == 0
    assert (time.perf_counter() - begin_s) / 100 < 0.001
    store.close()


def test_the_id_outlives_the_database(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store_id = store.id
    store.close()
    (tmp_path / "manager.db").unlink()
    store = Store(tmp_path)
    assert store.id == store_id
    assert store.rows() == []
    store.close()
