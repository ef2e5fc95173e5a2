"""The store: what goes in comes out, also after its file was closed or lost."""

from __future__ import annotations

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
    gone = row("c")
    store.save(replace(gone, info=replace(gone.info, state=State.DELETED)), "")
    store.close()
    store = Store(tmp_path)
    assert store.rows() == [row("b"), replace(row("a"), desired="running")]
    assert store.knows("c"), "an id is never used again"
    assert not store.knows("d")
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


def test_the_id_outlives_the_database(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store_id = store.id
    store.close()
    (tmp_path / "manager.db").unlink()
    store = Store(tmp_path)
    assert store.id == store_id
    assert store.rows() == []
    store.close()
