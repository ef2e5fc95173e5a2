"""What actors write is brought into the run folder, a look at a time, bounded, to their last words."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollcage.envs.placements.ray_whereabouts import Whereabouts
from rollcage.trainer.cluster import actor_logs, node_look
from rollcage.trainer.cluster.actor_logs import ActorLogs
from rollcage.trainer.cluster.node_look import NodeEye


def at(folder: Path, name: str, pid: int = 1) -> Whereabouts:
    return Whereabouts("10.0.0.2", pid, str(folder / f"{name}.err"), str(folder / f"{name}.out"), "n")


def visit(logs: ActorLogs) -> None:
    asked = logs.wanted("n")
    logs.take("n", asked, NodeEye().look(asked).pieces)


def test_what_an_actor_and_its_successor_write_comes_whole_and_in_order(tmp_path: Path) -> None:
    there, folder = tmp_path / "session", tmp_path / "logs"
    there.mkdir()
    logs = ActorLogs(folder)
    (there / "a.err").write_bytes(b":job_id:01\n:actor_name:EngineActor\nloads\nhalf a")
    assert logs.follow("engine 0", at(there, "a")) == "engine0.log"
    visit(logs)
    assert (folder / "engine0.log").read_text().endswith("loads\n"), "neither Ray's marks nor half a line"
    with (there / "a.err").open("ab") as file:
        file.write(b" line\n")
    (there / "a.out").write_bytes(b"printed\n")
    visit(logs)
    with (there / "a.err").open("ab") as file:
        file.write(b"CUDA out of memory")
    logs.follow("engine 0", at(there, "b", pid=2))  # the first one has died: its last words are still to come
    (there / "b.err").write_bytes(b"loads again\n")
    visit(logs)
    head, *lines = (folder / "engine0.log").read_text().splitlines()
    assert head.startswith("--- engine 0 on 10.0.0.2, process 1, log ")
    assert lines[:3] == ["loads", "half a line", "printed"]
    assert "process 2" in lines[3]
    assert "".join(lines[4:]) == "CUDA out of memoryloads again"
    visit(logs)
    assert {Path(path).stem for path, _ in logs.wanted("n")} == {"b"}, (
        "who has been read to the end is followed no more"
    )
    logs.lose("n")
    assert not logs.wanted("n")
    assert (folder / "engine0.log").read_text().endswith("its node has gone ---\n")


def test_a_flood_is_bounded_at_each_look_and_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_look, "MOST_BYTES", 1000)
    monkeypatch.setattr(actor_logs, "MOST_BYTES", 3000)
    there, folder = tmp_path / "session", tmp_path / "logs"
    there.mkdir()
    logs = ActorLogs(folder)
    logs.follow("environment 3", at(there, "a"))
    for number in range(10):
        with (there / "a.err").open("ab") as file:
            file.writelines(b"%d: line %04d\n" % (number, line) for line in range(200))
        visit(logs)
    kept = sorted(folder.iterdir())
    assert [path.name for path in kept] == ["environment3.log", "environment3.log.1"]
    assert all(path.stat().st_size < 5000 for path in kept)
    text = "".join(path.read_text() for path in reversed(kept))
    assert "bytes left out ---" in text
    assert "9: line 0199\n" in text, "the newest lines are those that are kept"


def test_without_a_folder_nothing_is_read() -> None:
    logs = ActorLogs(None)
    assert logs.follow("engine 0", Whereabouts("10.0.0.2", 1, "/a.err", "/a.out", "n")) == ""
    assert not logs.wanted("n")
    seen = NodeEye().look([("/no/such/file", 0)])
    assert seen.pieces == []
    assert seen.load >= 0
    assert 0 < seen.memory < 1
