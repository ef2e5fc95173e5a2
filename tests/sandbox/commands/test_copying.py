"""``rollcage sandbox cp`` means what `cp -r` means, into a sandbox and out of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sandbox.commands.in_process import Commands, service_on


@pytest.fixture(scope="module", params=["process", "docker"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    if request.param == "docker":
        request.getfixturevalue("base_image")
    endpoint = request.getfixturevalue("docker_endpoint") if request.param == "docker" else "process:"
    with service_on(endpoint, tmp_path_factory.mktemp(f"cp-{request.param}") / "state") as commands:
        yield commands


@pytest.fixture
def do(served: Commands, capfd: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    """Commands on a sandbox that has the key "box", new for each test."""
    do = replace(served, capfd=capfd)
    do("run", "--keep", "--key", "box", "rollcage-base", "true")
    yield do
    do("rm", "box")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands start in: a file, a folder, and an empty one."""
    (tmp_path / "d" / "sub").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("of file")
    (tmp_path / "d" / "a").write_text("of a")
    (tmp_path / "d" / "sub" / "b").write_text("of b")
    (tmp_path / "d" / "link").symlink_to("a")
    (tmp_path / "way").symlink_to("d")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def inside(do: Commands) -> list[str]:
    """Return what is in the sandbox's folder."""
    return sorted(do("exec", "box", "find . -mindepth 1 | sed s:^./::").out.split())


def outside(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


TREE = ["a", "link", "sub", "sub/b"]


def under(name: str) -> list[str]:
    return sorted([name, *(f"{name}/{path}" for path in TREE)])


@pytest.mark.parametrize(
    ("source", "target", "wanted"),
    [
        ("file", "old", ["old", "old/file"]),
        ("file", "old/", ["old", "old/file"]),
        ("file", "new", ["new", "old"]),
        ("file", ".", ["file", "old"]),
        ("d", "old", ["old", *under("old/d")]),
        ("d", "old/", ["old", *under("old/d")]),
        ("d/", "old", ["old", *under("old/d")]),
        ("d", "new", [*under("new"), "old"]),
        ("d", "new/", [*under("new"), "old"]),
        ("d/.", "old", under("old")),
        ("d/.", "new", [*under("new"), "old"]),
        ("way", "old", ["old", *(path.replace("/d", "/way") for path in under("old/d"))]),
    ],
)
def test_both_ways_targets_are_those_of_cp_r(
    do: Commands, here: Path, tmp_path: Path, source: str, target: str, wanted: list[str]
) -> None:
    do("exec", "box", "mkdir old")
    do("cp", source, f"box:{target}")
    assert inside(do) == sorted(wanted)
    if "link" in "".join(wanted):
        assert do("exec", "box", "find . -name link -exec readlink {} \\;").out == "a\n"

    do("exec", "box", "rm -rf * && mkdir -p d/sub && printf of > file && printf of > d/a && printf of > d/sub/b")
    do("exec", "box", "ln -s a d/link && ln -s d way")
    out = tmp_path / "out"
    (out / "old").mkdir(parents=True)
    do("cp", f"box:{source}", f"out/{target}")
    assert outside(out) == sorted(wanted)
    assert all(path.is_symlink() for path in out.rglob("link"))


def test_what_exists_is_replaced_or_merged_in_a_sandbox_and_kept_on_this_machine(do: Commands, here: Path) -> None:
    do("exec", "box", "mkdir -p d/sub; echo old > d/a; echo old > d/other; echo old > file")
    do("cp", "d", "box:.")
    do("cp", "file", "box:file")
    assert do("exec", "box", "cat d/a d/other file").out == "of aold\nof file"
    do("cp", "d/.", "box:d")
    for arguments in (("box:d", "."), ("box:file", "."), ("box:file", "file"), ("box:d/.", "d")):
        assert "exists" in do("cp", *arguments, code=2).line
    assert (here / "file").read_text() == "of file"
    assert outside(here / "d") == TREE, "nothing of it was copied"


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        ("none", "box:.", "there is no none on this machine"),
        ("file/", "box:.", "there is no file/ on this machine"),
        ("d/none/x", "box:.", "there is no d/none/x on this machine"),
        ("file", "box:none/", "there is no folder none/ in the sandbox"),
        ("file", "box:none/x", "there is no folder for none/x in the sandbox"),
        ("d", "box:none/x", "there is no folder for none/x in the sandbox"),
        ("d", "box:f", "f in the sandbox is a file"),
        ("d/sub", "box:full", "full/sub in the sandbox is a file"),
        ("d/a", "box:full", "full/a in the sandbox is a folder"),
        ("file", "box:f/", "there is no folder"),
        ("file", "box:/proc/x", "/proc"),
        ("box:none", "x", "there is no none in sandbox"),
        ("box:f/", "x", "there is no f/ in sandbox"),
        ("box:f", "none/x", "there is no folder for none/x"),
        ("box:f", "none/", "there is no folder none/"),
        ("box:full", "file", "file is a file"),
        ("box:full", "none/x", "there is no folder for none/x"),
        ("box:f", "/proc/x", "/proc"),
        ("file", "nobody:x", "there is no sandbox 'nobody'"),
        ("file", "bxo:x", "Did you mean 'box'?"),
        ("file", "d", "exactly one"),
        ("box:f", "box:g", "exactly one"),
    ],
)
def test_a_wrong_path_is_one_line_and_changes_nothing(
    do: Commands, here: Path, source: str, target: str, told: str
) -> None:
    do("exec", "box", "echo f > f; mkdir -p full/a; echo sub > full/sub")
    before = inside(do), outside(here)
    assert told in do("cp", source, target, code=None).line
    assert (inside(do), outside(here)) == before
