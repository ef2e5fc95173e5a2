"""Archives: what goes in comes out, nothing lands elsewhere, and nothing is left of what failed."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from rollcage.sandbox.archive import pack, split_target, unpack
from rollcage.sandbox.errors import NoSuchPath, SandboxError, UnsafePath


async def collect(source: Path | bytes, name: str) -> bytes:
    return b"".join([chunk async for chunk in pack(source, name)])


def write(archive: bytes, target: Path, chunk_bytes: int = 1000) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(archive), chunk_bytes):
            yield archive[start : start + chunk_bytes]

    asyncio.run(unpack(chunks(), target))


def make(*members: tuple[str, bytes, str], data: bytes = b"x") -> bytes:
    """Return an archive of members: name, type, link target."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.mode = kind, link, 0o755
            member.size = len(data) if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(data) if member.size else None)
    return file.getvalue()


def tree(folder: Path) -> dict[str, tuple[str, object]]:
    """Return what is in a folder: links with where they lead, files with their mode and bytes."""
    found: dict[str, tuple[str, object]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            what: tuple[str, object] = ("link", os.readlink(path))
        elif path.is_dir():
            what = ("folder", None)
        else:
            what = (oct(path.stat().st_mode & 0o777), path.read_bytes())
        found[str(path.relative_to(folder))] = what
    return found


FILE, FOLDER, LINK, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


def test_a_folder_comes_out_as_it_went_in(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "deep" / "er").mkdir(parents=True)
    (source / "deep" / "er" / ("long" * 40)).write_bytes(b"1" * 511)
    (source / "é ü\n").write_bytes(b"2" * 512)
    (source / "none").write_bytes(b"")
    (source / "large").write_bytes(os.urandom(3_000_001))
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("deep/er")
    (source / "deep" / "up").symlink_to("../run")
    archive = asyncio.run(collect(source, "other name"))
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert {name.split("/")[0] for name in tar.getnames()} == {"other name"}
        assert {(member.uid, member.gid) for member in tar} == {(0, 0)}
    write(archive, tmp_path / "target")
    assert tree(tmp_path / "target") == tree(source)
    assert sorted(os.listdir(tmp_path)) == ["source", "target"]


@pytest.mark.parametrize("data", [b"", b"x", b"y" * 512, bytes(range(256)) * 10_000])
def test_bytes_and_files_come_out_as_they_went_in(data: bytes, tmp_path: Path) -> None:
    write(asyncio.run(collect(data, "a")), tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == data
    write(asyncio.run(collect(tmp_path / "a", "b")), tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == data


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "x").symlink_to("/etc/passwd"),
        lambda folder: (folder / "x").symlink_to("../outside"),
        lambda folder: (folder / "x").symlink_to("inner/../../outside"),
        lambda folder: os.mkfifo(folder / "x"),
    ],
    ids=["absolute link", "link out", "winding link out", "pipe"],
)
def test_what_leads_out_is_not_packed(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    spoil(source)
    with pytest.raises(UnsafePath):
        asyncio.run(collect(source, "source"))


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(NoSuchPath):
        asyncio.run(collect(tmp_path / "nothing", "x"))
    with pytest.raises(NoSuchPath):
        write(make(("a", FILE, "")), tmp_path / "no" / "folder")
    with pytest.raises(FileExistsError):
        write(make(("a", FILE, "")), tmp_path)


@pytest.mark.parametrize(
    "archive",
    [
        make(("../a", FILE, "")),
        make(("a", FOLDER, ""), ("a/../../b", FILE, "")),
        make(("/a", FILE, "")),
        make(("a", FOLDER, ""), ("/a/b", FILE, "")),
        make(("a", LINK, "b")),
        make(("a", FOLDER, ""), ("a/b", LINK, "/etc")),
        make(("a", FOLDER, ""), ("a/b", LINK, "../../x")),
        make(("a", FOLDER, ""), ("a/b", LINK, "../x")),
        make(("a", FOLDER, ""), ("a/b", LINK, ".."), ("a/b/c", FILE, "")),
        make(("a", FOLDER, ""), ("a/b", HARD, "../etc/passwd")),
        make(("a", FOLDER, ""), ("a/b", HARD, "a/../../x")),
        make(("a", FOLDER, ""), ("a/b", tarfile.CHRTYPE, "")),
        make(("a", FOLDER, ""), ("a/b", tarfile.FIFOTYPE, "")),
        make(("a", tarfile.BLKTYPE, "")),
        make(("a", FOLDER, ""), ("b", FILE, "")),
        make(("a", FOLDER, ""), ("b/c", FILE, "")),
        make(("a", FOLDER, ""), ("a/c", HARD, "b/c")),
        make(("a", FILE, ""), ("a/b", FILE, "")),
        make(("a", FILE, ""), ("a", FILE, "")),
        make((".", FOLDER, ""), ("./a", FILE, "")),
    ],
)
def test_what_leads_out_is_not_unpacked_and_leaves_nothing(archive: bytes, tmp_path: Path) -> None:
    target = tmp_path / "inner" / "target"
    target.parent.mkdir()
    with pytest.raises(UnsafePath):
        write(archive, target)
    assert tree(tmp_path) == {"inner": ("folder", None)}


@pytest.mark.parametrize(
    "archive",
    [b"", b"nonsense" * 1000, make(("a", FILE, ""), data=b"x" * 9000)[:5000], bytes(1024), make(("a/b", HARD, "a/c"))],
)
def test_what_is_no_archive_is_told_and_leaves_nothing(archive: bytes, tmp_path: Path) -> None:
    with pytest.raises(SandboxError):
        write(archive, tmp_path / "target")
    assert tree(tmp_path) == {}


def test_hard_links_within_are_kept(tmp_path: Path) -> None:
    write(make(("a", FOLDER, ""), ("a/b", FILE, ""), ("a/c", HARD, "a/b")), tmp_path / "target")
    assert (tmp_path / "target" / "b").samefile(tmp_path / "target" / "c")


def test_set_user_id_bits_and_others_write_access_are_dropped(tmp_path: Path) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in ("a/b",):
            member = tarfile.TarInfo(name)
            member.mode = 0o6777
            tar.addfile(member)
    write(file.getvalue(), tmp_path / "target")
    assert (tmp_path / "target" / "b").stat().st_mode & 0o7777 == 0o755


def test_what_breaks_off_ends_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield make(("a", FILE, ""), data=b"x" * 9000)[:5000]
        raise SandboxError("broken off")

    async def endless() -> AsyncIterator[bytes]:
        yield make(("a", FILE, ""), data=b"x" * 9000)[:5000]
        await asyncio.sleep(60.0)

    async def main() -> None:
        with pytest.raises(SandboxError, match="broken off"):
            await unpack(broken(), tmp_path / "target")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await unpack(endless(), tmp_path / "target")

    asyncio.run(main())
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("target", ["", "/", ".", "..", "/a/..", "a/.", "a\0b"])
def test_a_target_names_a_file(target: str) -> None:
    with pytest.raises(UnsafePath):
        split_target(target)
