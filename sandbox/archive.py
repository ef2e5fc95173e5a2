"""Files as tar streams, in bounded memory: `pack` reads them from this machine, `unpack` writes them to it."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import stat
import tarfile
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Self

from rollcage.sandbox.errors import BadArchive, NoSuchPath, SandboxError, UnsafePath
from rollcage.sandbox.types import MIB

CHUNK_BYTES = MIB


def split_target(target: str) -> tuple[str, str]:
    """Return folder and name of a path in a sandbox; raises UnsafePath where it names no file.

    >>> split_target("/work/a/b.txt"), split_target("b.txt"), split_target("/b/")
    (('/work/a', 'b.txt'), ('.', 'b.txt'), ('/', 'b'))
    """
    folder, _, name = target.rstrip("/").rpartition("/")
    if name in ("", ".", "..") or "\0" in target:
        raise UnsafePath(f"{target!r} names no file or folder to write.")
    return folder or ("/" if target.startswith("/") else "."), name


async def pack(source: Path | bytes, name: str) -> AsyncGenerator[bytes, None]:
    """Yield a tar stream of a file, a folder or bytes, called ``name`` in there. Owners are not kept; modes are.

    Raises:
        NoSuchPath: there is no ``source``, or a file shrank while it was read.
        UnsafePath: a symlink leads out of ``source``, or something is neither file, folder nor symlink.
    """
    chunks = _members(source, name)
    reading: asyncio.Future[bytes | None] | None = None
    try:
        while True:
            reading = asyncio.ensure_future(asyncio.to_thread(next, chunks, None))
            if (chunk := await asyncio.shield(reading)) is None:
                return
            yield chunk
    finally:
        if reading is not None and not reading.done():
            await asyncio.wait([reading])  # a thread that is called off reads on: nobody may close under its hands
        chunks.close()


def _members(source: Path | bytes, name: str) -> Generator[bytes, None, None]:
    if isinstance(source, bytes):
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(source), 0o644
        yield _header(member)
        for start in range(0, len(source), CHUNK_BYTES):
            yield source[start : start + CHUNK_BYTES]
        yield _padding(len(source))
    else:
        for path, inner in _walk(source, name):
            yield from _member(source, path, inner)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _walk(source: Path, name: str) -> Iterator[tuple[Path, str]]:
    yield source, name
    if source.is_dir() and not source.is_symlink():
        for child in sorted(source.iterdir()):
            yield from _walk(child, f"{name}/{child.name}")


def _member(source: Path, path: Path, name: str) -> Iterator[bytes]:
    try:
        status = path.lstat() if path != source else path.stat()  # what was asked for may be reached over a link
    except OSError as error:
        raise NoSuchPath(f"cannot read {path}: {error.strerror}.") from None
    member = tarfile.TarInfo(name)
    member.mode, member.mtime = stat.S_IMODE(status.st_mode) & 0o777, int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
        if os.path.isabs(member.linkname) or not path.resolve().is_relative_to(source.resolve()):
            raise UnsafePath(f"{path} is a symlink that leads out of {source}: to {member.linkname}.")
    elif not stat.S_ISREG(status.st_mode):
        raise UnsafePath(f"{path} is neither a file nor a folder nor a symlink.")
    else:
        try:
            file = path.open("rb")
        except OSError as error:
            raise NoSuchPath(f"cannot read {path}: {error.strerror}.") from None
        with file:
            member.size = left = os.fstat(file.fileno()).st_size
            yield _header(member)
            while left:
                if not (chunk := file.read(min(left, CHUNK_BYTES))):
                    raise NoSuchPath(f"{path} became shorter while it was read.")
                left -= len(chunk)
                yield chunk
        yield _padding(member.size)
        return
    yield _header(member)


def _header(member: tarfile.TarInfo) -> bytes:
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padding(num_bytes: int) -> bytes:
    return bytes(-num_bytes % tarfile.BLOCKSIZE)


async def unpack(chunks: AsyncIterator[bytes], target: Path) -> None:
    """Write a tar stream with one top member, which becomes ``target``: all of it, or nothing.

    Raises:
        FileExistsError: ``target`` exists. NoSuchPath: its folder does not.
        UnsafePath: a member would land outside of ``target``, or is a device or a link that leads out of it.
        BadArchive: it is no tar archive, or is cut short.
    """
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists.")
    if not target.parent.is_dir():
        raise NoSuchPath(f"there is no folder {target.parent} on this machine.")
    part = target.parent / f".{target.name}.{secrets.token_hex(4)}.part"
    reader = _Reader(chunks, asyncio.get_running_loop())
    writing = asyncio.create_task(asyncio.to_thread(_write, reader, part))
    try:
        await asyncio.shield(writing)
        if os.path.lexists(target):
            raise FileExistsError(f"{target} exists.")
        part.rename(target)
    finally:
        reader.stop()
        await asyncio.wait({writing})
        writing.cancelled() or writing.exception()  # it was told above, or the caller has left
        await asyncio.to_thread(_remove, part)


class _Reader:
    """The file that `tarfile` reads in its thread: each read waits for the chunks that the event loop brings."""

    def __init__(self, chunks: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._chunks, self._loop, self._rest = chunks, loop, b""
        self._lock, self._is_stopped = threading.Lock(), False
        self._coming: Any = None

    def read(self, num_bytes: int) -> bytes:
        """Return so many bytes at most, b"" at the end."""
        if not self._rest:
            with self._lock:
                if self._is_stopped:
                    raise SandboxError("stopped")
                self._coming = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
            self._rest = self._coming.result()
        taken, self._rest = self._rest[:num_bytes], self._rest[num_bytes:]
        return taken

    def stop(self) -> None:
        """Let a read that waits fail, and every later one."""
        with self._lock:
            self._is_stopped = True
            if self._coming is not None:
                self._coming.cancel()

    async def _next(self) -> bytes:
        async for chunk in self._chunks:
            if chunk:
                return chunk
        return b""


class _Member(tarfile.TarInfo):
    """A member of an archive that must not end in the middle: `tarfile` alone takes that for its end."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        """Read the next member."""
        try:
            return super().fromtarfile(tar)
        except (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError):  # type: ignore[attr-defined]
            raise tarfile.ReadError("it is cut short") from None


def _write(reader: _Reader, part: Path) -> None:
    try:
        with tarfile.open(  # type: ignore[call-overload]
            fileobj=reader, mode="r|", bufsize=256 * 1024, tarinfo=_Member
        ) as tar:
            top = ""
            while (member := tar.next()) is not None:
                tar.members = []  # it would remember every one
                top = top or _parts(member.name)[0]
                _extract(tar, member, part, top)
    except tarfile.FilterError as error:
        raise UnsafePath(f"the archive holds what must not be unpacked: {error}.") from None
    except (tarfile.TarError, EOFError, KeyError, ValueError) as error:  # the last two: a hard link to nothing
        raise BadArchive(f"the archive cannot be read: {error}.") from None
    if not os.path.lexists(part):
        raise BadArchive("the archive is empty.")
    while reader.read(MIB):  # the padding behind the archive's end: whoever sends it shall not find a closed door
        pass


def _parts(name: str) -> list[str]:
    """Return the parts of a member's name; raises UnsafePath where they lead anywhere but down."""
    parts = list(PurePosixPath(name).parts)
    if not parts or name.startswith("/") or ".." in parts:
        raise UnsafePath(f"the archive holds {name!r}, which leads out of its folder.")
    return parts


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, part: Path, top: str) -> None:
    first, *rest = _parts(member.name)
    if first != top or (member.islnk() and _parts(member.linkname)[0] != top):
        raise UnsafePath(f"the archive holds {member.name!r} beside {top!r}: only one file or folder was asked for.")
    if rest:
        if not os.path.lexists(part):
            part.mkdir()
        elif not part.is_dir():
            raise UnsafePath(f"the archive holds {member.name!r}, but {top!r} is a file.")
        link = "/".join(_parts(member.linkname)[1:]) if member.islnk() else member.linkname
        tar.extract(member.replace(name="/".join(rest), linkname=link, deep=False), part, filter="data")
    elif os.path.lexists(part):
        raise UnsafePath(f"the archive holds {member.name!r} twice.")
    elif member.isdir():
        part.mkdir()
    elif member.isreg() and (content := tar.extractfile(member)) is not None:
        with content, part.open("xb") as file:
            shutil.copyfileobj(content, file, CHUNK_BYTES)
        part.chmod(member.mode & 0o755 | 0o600)
    else:
        raise UnsafePath(f"the archive holds {member.name!r}, which is neither a file nor a folder.")


def _remove(part: Path) -> None:
    if part.is_dir() and not part.is_symlink():
        shutil.rmtree(part, ignore_errors=True)
    else:
        part.unlink(missing_ok=True)
