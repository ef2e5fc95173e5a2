"""Files into the guest and out of it, and archives of every bad kind."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.sandbox.guest.local_guest import run, with_guest

from rollcage.sandbox.archive import pack, unpack
from rollcage.sandbox.errors import DeadlineExceeded, NoSuchPath, SandboxError, UnsafePath
from rollcage.sandbox.guest.channel import AgentGuest
from rollcage.sandbox.manager.reading import read_file


def make_tree(folder: Path) -> Path:
    """Make a folder with a bit of everything that may travel."""
    folder.mkdir()
    (folder / "empty").mkdir()
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / ("long-" * 40 + "ü")).write_bytes(b"\0\xff" * 1000)
    (folder / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "nothing").touch()
    (folder / "link").symlink_to("deep/er")
    (folder / "deep" / "up").symlink_to("../run.sh")
    (folder / "dangling").symlink_to("nowhere")
    os.link(folder / "run.sh", folder / "hard")
    os.utime(folder / "run.sh", (1e9, 1e9))
    return folder


def look(folder: Path) -> dict[str, object]:
    """Return all that is in a folder: links, contents and modes by name."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = None
        else:
            found[name] = (path.read_bytes(), path.stat().st_mode, int(path.stat().st_mtime))
    return found


def test_a_folder_comes_back_as_it_went(tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source")

    async def test(guest: AgentGuest) -> None:
        await guest.put(pack(source, "inside"), str(tmp_path / "a" / "b"), timeout_s=20)
        assert look(tmp_path / "a" / "b" / "inside") == look(source)
        assert (await run(guest, "a/b/inside/run.sh")).stdout == b"ran\n"
        await unpack(guest.get("a/b/inside", timeout_s=20), tmp_path / "back")
        assert look(tmp_path / "back") == look(source)

    with_guest(tmp_path, test)


def test_S18_a_file_in_a_missing_folder_is_made(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        data = os.urandom(5 << 20)
        started = time.monotonic()
        await guest.put(pack(data, "file"), str(tmp_path / "new" / "er"), timeout_s=20)
        assert (tmp_path / "new" / "er" / "file").read_bytes() == data
        assert time.monotonic() - started < 5
        assert await read_file(guest.get("new/er/file", timeout_s=20), "new/er/file", 8 << 20) == data
        with pytest.raises(UnsafePath, match="larger than 1048576 bytes"):
            await read_file(guest.get("new/er/file", timeout_s=20), "new/er/file", 1 << 20)
        with pytest.raises(NoSuchPath):
            await read_file(guest.get("new/er", timeout_s=20), "new/er", 8 << 20)

    with_guest(tmp_path, test)


def test_what_is_there_is_replaced_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "box" / "folder").mkdir(parents=True)
    (tmp_path / "box" / "folder" / "old").write_text("old")
    (tmp_path / "other").write_text("other")
    (tmp_path / "box" / "link").symlink_to(tmp_path / "other")

    async def test(guest: AgentGuest) -> None:
        box = str(tmp_path / "box")
        await guest.put(pack(b"new", "link"), box, timeout_s=20)
        assert (tmp_path / "other").read_text() == "other"
        assert (tmp_path / "box" / "link").read_text() == "new"
        await guest.put(pack(b"newer", "link"), box, timeout_s=20)
        assert (tmp_path / "box" / "link").read_text() == "newer"
        (tmp_path / "more").mkdir()
        (tmp_path / "more" / "new").write_text("new")
        await guest.put(pack(tmp_path / "more", "folder"), box, timeout_s=20)
        assert sorted(os.listdir(tmp_path / "box" / "folder")) == ["new", "old"]
        with pytest.raises(NoSuchPath, match="directory"):
            await guest.put(pack(b"x", "folder"), box, timeout_s=20)
        with pytest.raises(NoSuchPath):
            await guest.put(pack(b"x", "y"), str(tmp_path / "other" / "folder"), timeout_s=20)

    with_guest(tmp_path, test)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    async def test(guest: AgentGuest) -> None:
        with pytest.raises(NoSuchPath, match="nope"):
            await unpack(guest.get("nope", timeout_s=20), tmp_path / "back")
        with pytest.raises(NoSuchPath):
            await anext(guest.get("/proc/1/fd/99", timeout_s=20))
        with pytest.raises(NoSuchPath, match="nope"):
            await guest.put(pack(tmp_path / "nope", "x"), str(tmp_path / "made"), timeout_s=20)
        with pytest.raises(FileExistsError):
            await unpack(guest.get(".", timeout_s=20), tmp_path)
        with pytest.raises(NoSuchPath):
            await unpack(guest.get("/etc/passwd", timeout_s=20), tmp_path / "no" / "folder")
        assert not (tmp_path / "back").exists()
        assert (await run(guest, "echo ok")).stdout == b"ok\n"

    with_guest(tmp_path, test)


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"x"
) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member of an archive."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o755
    info.size = len(data) if kind == tarfile.REGTYPE else 0
    return info, data


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Return a tar of those members, however bad."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return file.getvalue()


async def stream(data: bytes) -> AsyncIterator[bytes]:
    """Yield bytes in pieces."""
    for at in range(0, len(data), 700):
        yield data[at : at + 700]


SYM, LNK, DIR = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
BAD = {
    "parent": [member("top/../../evil")],
    "dots": [member("..", DIR)],
    "absolute": [member("/tmp/evil")],
    "absolute link": [member("top", DIR), member("top/l", SYM, "/etc")],
    "link up": [member("top", DIR), member("top/l", SYM, "../other")],
    "link to itself up": [member("top", SYM, "..")],
    "through a link": [member("top", DIR), member("top/l", SYM, ".."), member("top/l/evil")],
    "through an absolute link": [member("top", DIR), member("top/l", SYM, "/tmp"), member("top/l/evil")],
    "two links": [
        member("top", DIR),
        member("top/a/b/c", DIR),
        member("top/a/b/c/s", SYM, "../../.."),
        member("top/x", SYM, "a/b/c/s/../evil"),
    ],
    "link behind a link": [member("top", DIR), member("top/y", SYM, "x/../.."), member("top/x", SYM, ".")],
    "hard link up": [member("top", DIR), member("top/h", LNK, "../../secret")],
    "hard link, absolute": [member("top", DIR), member("top/h", LNK, "/etc/passwd")],
    "device": [member("top", DIR), member("top/null", tarfile.CHRTYPE)],
    "pipe": [member("top", DIR), member("top/pipe", tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("members", BAD.values(), ids=BAD.keys())
def test_S18_members_that_lead_out_are_refused(tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    box = tmp_path / "box" / "inner"
    box.mkdir(parents=True)
    (tmp_path / "box" / "secret").write_text("secret")

    async def test(guest: AgentGuest) -> None:
        with pytest.raises(UnsafePath):
            await guest.put(stream(archive(*members)), str(box), timeout_s=20)
        with pytest.raises(UnsafePath):
            await unpack(stream(archive(*members)), box / "target")
        assert not (box / "target").exists()
        assert not [name for name in os.listdir(box) if name.startswith(".")]
        assert [path for path in box.rglob("*") if path.is_symlink()] == []
        assert sorted(os.listdir(tmp_path / "box")) == ["inner", "secret"]
        assert not Path("/tmp/evil").exists()

    with_guest(tmp_path, test)


def test_an_existing_link_that_leads_out_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "box" / "l").symlink_to(tmp_path / "out")

    async def test(guest: AgentGuest) -> None:
        with pytest.raises(UnsafePath, match="link"):
            await guest.put(stream(archive(member("l/evil"))), str(tmp_path / "box"), timeout_s=20)
        assert os.listdir(tmp_path / "out") == []

    with_guest(tmp_path, test)


def test_a_local_folder_that_leads_out_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    for number, target in enumerate(("/etc/passwd", "../secret", str(tmp_path / "folder1"))):
        folder = tmp_path / f"folder{number}"
        folder.mkdir()
        (folder / "link").symlink_to(target)
    (tmp_path / "pipes").mkdir()
    os.mkfifo(tmp_path / "pipes" / "pipe")

    async def test(guest: AgentGuest) -> None:
        for name in ("folder0", "folder1", "folder2", "pipes"):
            with pytest.raises(UnsafePath):
                await guest.put(pack(tmp_path / name, name), str(tmp_path / "box"), timeout_s=20)
            assert not (tmp_path / "box" / name).exists()

    with_guest(tmp_path, test)


@pytest.mark.parametrize("cut", [0, 100, 512, 1000, 3000])
def test_half_an_archive_is_refused(tmp_path: Path, cut: int) -> None:
    data = archive(member("top", DIR), member("top/file", data=b"y" * 5000))[:cut]
    garbage = b"this is no archive" * 100

    async def test(guest: AgentGuest) -> None:
        for bad in (data, garbage):
            with pytest.raises(SandboxError):
                await unpack(stream(bad), tmp_path / "target")
            assert not (tmp_path / "target").exists()
        if cut not in (0, 512):  # an archive of nothing, or of an empty folder, can be put
            with pytest.raises(SandboxError):
                await guest.put(stream(data), str(tmp_path / "box"), timeout_s=20)
        with pytest.raises(SandboxError):
            await guest.put(stream(garbage), str(tmp_path / "box"), timeout_s=20)

    with_guest(tmp_path, test)


def test_an_archive_with_two_tops_is_no_one_file(tmp_path: Path) -> None:
    with pytest.raises(UnsafePath, match="only one file or folder"):
        asyncio.run(unpack(stream(archive(member("a"), member("b"))), tmp_path / "target"))
    assert os.listdir(tmp_path) == []


def test_moves_end_by_their_deadline_and_can_be_given_up(tmp_path: Path) -> None:
    async def forever() -> AsyncIterator[bytes]:
        yield archive(member("top", data=bytes(100_000)))[:50_000]
        await asyncio.sleep(600)

    async def test(guest: AgentGuest) -> None:
        with pytest.raises(DeadlineExceeded):
            await asyncio.wait_for(guest.put(forever(), "box", timeout_s=0.3), 10)
        task = asyncio.create_task(guest.put(forever(), "box", timeout_s=20))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        getting = asyncio.create_task(unpack(forever(), tmp_path / "target"))
        await asyncio.sleep(0.3)
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        assert not (tmp_path / "target").exists()
        pieces = guest.get("/usr/lib", timeout_s=20)
        await anext(pieces)
        await pieces.aclose()
        assert (await run(guest, "echo ok")).stdout == b"ok\n"

    with_guest(tmp_path, test)
    assert not list(tmp_path.glob(".target*"))


def test_what_the_source_raises_is_passed_on(tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield archive(member("top"))[:512]
        raise RuntimeError("broken")

    async def test(guest: AgentGuest) -> None:
        with pytest.raises(RuntimeError, match="broken"):
            await unpack(broken(), tmp_path / "target")
        with pytest.raises(RuntimeError, match="broken"):
            await guest.put(broken(), str(tmp_path), timeout_s=20)
        assert not (tmp_path / "target").exists()

    with_guest(tmp_path, test)


S18 = """
import asyncio, resource, sys
from pathlib import Path
from rollcage.sandbox.archive import pack, unpack
from tests.sandbox.guest.local_guest import local_guest, run

async def main():
    folder = Path(sys.argv[1])
    async with local_guest(folder) as guest:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await guest.put(pack(folder / "big", "there"), str(folder), timeout_s=60)
        await unpack(guest.get("there", timeout_s=60), folder / "back")
        pid = (await run(guest, "echo $PPID")).stdout_text.strip()
        agent = [line.split()[1] for line in open(f"/proc/{pid}/status") if line.startswith("VmHWM")][0]
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, agent)

asyncio.run(main())
"""


def test_S18_much_each_way_takes_little_memory(tmp_path: Path) -> None:
    """160 MiB here; 500 MiB is a command in benchmarks/sandbox."""
    with (tmp_path / "big").open("wb") as file:
        for number in range(160):
            file.write(number.to_bytes(4, "big") * (1 << 18))
    done = subprocess.run([sys.executable, "-c", S18, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grown_kib, agent_kib = map(int, done.stdout.split())
    assert grown_kib < 64 * 1024
    assert agent_kib < 64 * 1024
    assert subprocess.run(["cmp", tmp_path / "big", tmp_path / "back"], check=False).returncode == 0


def test_the_event_loop_is_not_blocked(tmp_path: Path) -> None:
    with (tmp_path / "big").open("wb") as file:
        file.truncate(60 << 20)

    async def test(guest: AgentGuest) -> None:
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.01)
                longest = max(longest, time.monotonic() - before)

        watching = asyncio.create_task(watch())
        await guest.put(pack(tmp_path / "big", "there"), str(tmp_path), timeout_s=60)
        await unpack(guest.get("there", timeout_s=60), tmp_path / "back")
        watching.cancel()
        assert longest < 0.5

    with_guest(tmp_path, test)


def test_names_that_only_look_bad_are_good(tmp_path: Path) -> None:
    names: list[str | Callable[[], str]] = ["..a", "a..", "...", " ", "-rf", "a\nb", "ü\udcff", "*"]
    source = tmp_path / "source"
    source.mkdir()
    for name in names:
        (source / str(name)).write_text("x")

    async def test(guest: AgentGuest) -> None:
        await guest.put(pack(source, "there"), str(tmp_path), timeout_s=20)
        assert sorted(os.listdir(tmp_path / "there")) == sorted(map(str, names))
        await unpack(guest.get("there", timeout_s=20), tmp_path / "back")
        assert sorted(os.listdir(tmp_path / "back")) == sorted(map(str, names))

    with_guest(tmp_path, test)
