"""Sandboxes are named by id, key, or the beginning of an id; and many of them are listed such that they can be read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sandbox.commands.in_process import Commands, service_on
from tests.sandbox.places import served as served_here

from rollcage.errors import UserError
from rollcage.sandbox.commands.naming import match
from rollcage.sandbox.drivers.fake import FakeDriver
from rollcage.sandbox.errors import SandboxNotFound
from rollcage.sandbox.manager.manager import Manager
from rollcage.sandbox.types import SandboxSpec


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with service_on("process:", tmp_path_factory.mktemp("naming") / "state") as commands:
        yield commands


@pytest.fixture
def do(served: Commands, capfd: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    do = replace(served, capfd=capfd)
    yield do
    do("rm", "--all")


def make(do: Commands, key: str = "") -> str:
    return do("run", "--keep", "--key", key, "rollcage-base", "true").err.split()[-1]


def test_an_id_counts_before_a_key_and_a_key_before_the_beginning_of_an_id() -> None:
    keys = {"a1": "", "a2": "b", "b1": "", "c1": "a1", "d1": "same", "d2": "same"}
    assert [match(name, keys) for name in ("a1", "b", "b1", "c")] == ["a1", "a2", "b1", "c1"]
    for name, told in (("a", r"a1, a2 \(b\)"), ("same", r"d1 \(same\), d2 \(same\)")):
        with pytest.raises(UserError, match=told):
            match(name, keys)
    with pytest.raises(UserError, match="e0, e1, e2, e3, e4 and 5 more"):
        match("e", {f"e{number}": "" for number in range(10)})
    for name in ("", "none", "A1"):
        with pytest.raises(SandboxNotFound):
            match(name, keys)
    with pytest.raises(SandboxNotFound, match="Did you mean 'same'"):
        match("sam", keys)


def test_every_command_takes_id_key_or_the_beginning_of_an_id(do: Commands, tmp_path: Path) -> None:
    box, other = make(do, "mine"), make(do, "other")
    length = next(length for length in range(1, 13) if not other.startswith(box[:length]))
    (tmp_path / "in").write_text("x")
    for name in (box, "mine", box[:length], box[:-1]):
        assert do("exec", name, "echo on").out == "on\n"
        assert json.loads(do("logs", "--json", name).out)["id"] == box
        told = [json.loads(line) for line in do("events", "--json", name).out.splitlines()]
        assert {event["sandbox_id"] for event in told} == {box}
        do("cp", str(tmp_path / "in"), f"{name}:file-{len(name)}")
        do("cp", f"{name}:file-{len(name)}", str(tmp_path / f"out-{name}"))
    assert do("rm", "mine", other[:-1]).out.split() == [box, other]
    for name in (box, "mine", box[:-1]):
        assert "deleted" in do("events", name).out, "history stays"
    for command in ("exec", "logs", "rm", "shell"):
        assert "there is no sandbox 'mine'" in do(command, "mine", *["true"] * (command == "exec"), code=1).line
    assert "there is no sandbox 'none'" in do("events", "none", code=1).line


def test_a_name_that_several_have_is_told_with_all_of_them(do: Commands) -> None:
    boxes = [make(do, f"key-{number}") for number in range(17)]
    first = next(box[0] for box in boxes if sum(other[0] == box[0] for other in boxes) > 1)
    several = [f"{box} (key-{number})" for number, box in enumerate(boxes) if box[0] == first]
    for arguments in (["exec", first, "true"], ["logs", first], ["events", first], ["cp", "/etc/hosts", f"{first}:x"]):
        line = do(*arguments, code=2).line
        assert f"means {len(several)} sandboxes" in line
        assert all(it in line for it in several[:5])
    assert do("rm", first, code=1).out == ""


def test_a_hundred_sandboxes_with_long_keys_can_be_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    keys = [f"swe/{'long-' * 30}{number:03}" for number in range(100)]
    ids: list[str] = []
    do = Commands(tmp_path, capfd)

    def look() -> None:
        lines = do("ls").out.splitlines()
        assert len(lines) == 101
        assert max(len(line) for line in lines) < 180
        starts = [lines[0].index(head) for head in ("STATE", "KEY", "OWNER", "LIFE", "IMAGE", "EXPIRES")]
        assert all(line[start - 1] == " " != line[start] for line in lines for start in starts)
        assert all(it in line and key[-3:] in line for it, key, line in zip(ids, keys, lines[1:], strict=True))
        assert [info["key"] for info in json.loads(do("ls", "--json").out)] == keys
        assert max(len(line) for line in do("events").out.splitlines()) < 230
        told = [json.loads(line) for line in do("events", "--json").out.splitlines()]
        assert {event["data"]["key"] for event in told if event["kind"] == "created"} == set(keys)
        assert {event["sandbox_id"] for event in told} == set(ids)
        assert do("logs", keys[7]).code == 0

    async def serve_and_look() -> None:
        async with Manager({"here": FakeDriver()}, tmp_path) as manager, served_here(manager, tmp_path):
            for key in keys:
                ids.append((await manager.create(SandboxSpec(cpus=0.1), key=key, owner="o" * 100)).id)
            await asyncio.to_thread(look)

    asyncio.run(serve_and_look())
