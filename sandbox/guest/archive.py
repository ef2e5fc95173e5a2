"""Tar streams between local files and the inside of a sandbox: in threads, piece by piece."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from rollcage.sandbox.errors import NoSuchPath, SandboxError, UnsafePath
from rollcage.sandbox.guest import agent

T = TypeVar("T")
_ERRORS: dict[str, type[SandboxError]] = {"NoSuchPath": NoSuchPath, "UnsafePath": UnsafePath}


async def pack(source: Path | bytes, name: str) -> AsyncIterator[bytes]:
    """Yield a tar stream of a local file or folder, or of a file with those bytes, as ``name``.

    Raises:
        NoSuchPath: there is no ``source``, or part of it cannot be read.
        UnsafePath: it holds a symlink that leads out of it, a pipe or a device.
    """
    if isinstance(source, bytes):
        pieces = _pack_bytes(source, name)
    else:
        await _in_thread(lambda: _check_tree(source))
        pieces = agent.pack_archive(os.fspath(source), name)
    try:
        while (piece := await _in_thread(lambda: next(pieces, None))) is not None:
            yield piece
    finally:
        pieces.close()  # type: ignore[attr-defined]  # both are generators


async def unpack(chunks: AsyncIterator[bytes], target: Path) -> None:
    """Make the one file or folder of a tar stream the path ``target``, whatever its name in there.

    ``target`` appears when all is well, as a whole; otherwise nothing is left.

    Raises:
        FileExistsError: ``target`` exists. NoSuchPath: its folder does not, or it cannot be written.
        UnsafePath: a member leads out of it ("..", an absolute name, a link), or is a device.
        SandboxError: the stream is no whole archive. What ``chunks`` raises is passed on.
    """
    await _pull(chunks, lambda stream: _unpack(stream, target))


async def read_file(chunks: AsyncIterator[bytes], max_bytes: int) -> bytes:
    """Return the bytes of the one file of a tar stream.

    Raises:
        NoSuchPath: it holds no regular file. UnsafePath: that is larger than ``max_bytes``.
        SandboxError: the stream is no whole archive. What ``chunks`` raises is passed on.
    """
    return await _pull(chunks, lambda stream: _read_file(stream, max_bytes))


def _pack_bytes(data: bytes, name: str) -> Iterator[bytes]:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = len(data), 0o644, int(time.time())
    yield info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
    for at in range(0, len(data), agent.PIECE_BYTES):
        yield data[at : at + agent.PIECE_BYTES]
    yield bytes(-len(data) % 512 + 1024)


def _check_tree(source: Path) -> None:
    """Raise now what would otherwise be found when half of it is inside."""
    if not os.path.exists(source):
        raise NoSuchPath(f"{source} does not exist.")
    root = os.path.realpath(source)
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                end = os.path.realpath(path)
                # An absolute link that leads inside here leads elsewhere there.
                if os.path.isabs(os.readlink(path)) or not (end == root or end.startswith(root + os.sep)):
                    raise UnsafePath(f"The link {path} leads out of {source}, to {os.readlink(path)}.")
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISSOCK(mode)):
                raise UnsafePath(f"{path} is a pipe or a device.")


def _unpack(stream: BinaryIO, target: Path) -> None:
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists already: remove it, or name another path.")
    try:
        folder = tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise NoSuchPath(f"{target} cannot be written: {error.strerror}.") from error
    try:
        agent.unpack_archive(stream, folder)
        names = os.listdir(folder)
        if len(names) != 1:
            raise UnsafePath(f"The archive for {target} holds {len(names)} files or folders, not one.")
        os.rename(os.path.join(folder, names[0]), target)
    except OSError as error:
        raise NoSuchPath(f"{target} cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(folder)


def _read_file(stream: BinaryIO, max_bytes: int) -> bytes:
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=agent.PIECE_BYTES) as archive:
            member = archive.next()
            if member is None or not member.isreg():
                raise NoSuchPath(f"{member.name if member else 'It'} is not a file.")
            if member.size > max_bytes:
                raise UnsafePath(f"{member.name} holds {member.size:,} bytes, more than {max_bytes:,}.")
            file = archive.extractfile(member)
            data = file.read() if file else b""
            while stream.read(agent.PIECE_BYTES):
                pass
            return data
    except tarfile.TarError as error:
        raise SandboxError(f"not a whole archive: {error}") from error


class _Puller:
    """A file, for a thread, of what an async iterator of the loop yields."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._loop = asyncio.get_running_loop()
        self._left = memoryview(b"")
        self._waiting: Any = None
        self.is_stopped = False

    def read(self, num_bytes: int) -> bytes:
        """Return 1 to ``num_bytes`` bytes, or b"" at the end. Called in the thread."""
        while not self._left:
            self._waiting = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
            chunk = self._waiting.result()
            if chunk is None:
                return b""
            self._left = memoryview(chunk)
        data = bytes(self._left[:num_bytes])
        self._left = self._left[num_bytes:]
        return data

    async def _next(self) -> bytes | None:
        if self.is_stopped:
            raise asyncio.CancelledError
        return await anext(self._chunks, None)

    def stop(self) -> None:
        """Make the thread end. Called in the loop."""
        self.is_stopped = True
        if self._waiting is not None:
            self._waiting.cancel()


async def _pull(chunks: AsyncIterator[bytes], use: Callable[[BinaryIO], T]) -> T:
    """Call ``use`` in a thread, with what ``chunks`` yields as a file."""
    puller = _Puller(chunks)
    try:
        return await _in_thread(lambda: use(cast(BinaryIO, puller)), stop=puller.stop)
    finally:
        if hasattr(chunks, "aclose"):
            await chunks.aclose()


async def _in_thread(function: Callable[[], T], stop: Callable[[], None] = lambda: None) -> T:
    """Call ``function`` in a thread. When cancelled, first let it end: it must not go on with what is closed then."""
    thread = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        stop()
        await asyncio.wait([thread])
        if not thread.cancelled():
            thread.exception()  # seen
        raise
    except agent.ArchiveError as error:
        raise _ERRORS.get(error.kind, SandboxError)(str(error)) from error
