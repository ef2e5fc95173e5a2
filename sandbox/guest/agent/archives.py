"""Files and folders as tar streams, packed and unpacked inside: no member leads out of its folder."""

from __future__ import annotations

import errno
import os
import stat

from rollcage.sandbox.guest.agent.frames import PIECE_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO


class ArchiveError(Exception):
    """An archive cannot be read or written; ``kind`` is the name of the host's error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def pack_archive(path: str, name: str) -> Iterator[bytes]:
    """Yield a tar stream of the file or folder ``path`` (followed, if a link), named ``name`` in it.

    Sockets are left out. Hard links become files of their own.

    Raises:
        ArchiveError: NoSuchPath or UnsafePath (a pipe or a device).
    """
    block = bytearray()
    try:
        path = os.path.realpath(path)
    except OSError as error:
        raise ArchiveError("NoSuchPath", f"{path}: {error.strerror}") from error
    for piece in _archive_pieces(path, name):
        block += piece
        if len(block) >= PIECE_BYTES:
            yield bytes(block)
            block.clear()
    yield bytes(block) + bytes(1024)


def _archive_pieces(top: str, top_name: str) -> Iterator[bytes]:
    import tarfile

    waiting = [(top, top_name)]
    while waiting:
        path, name = waiting.pop()
        try:
            status = os.lstat(path)
        except OSError as error:
            if path != top and error.errno == errno.ENOENT:
                continue
            raise ArchiveError("NoSuchPath", f"{path}: {error.strerror}") from error
        info = tarfile.TarInfo(name)
        info.mode, info.mtime = stat.S_IMODE(status.st_mode), int(status.st_mtime)
        data: BinaryIO | None = None
        try:
            if stat.S_ISSOCK(status.st_mode):
                continue
            if stat.S_ISLNK(status.st_mode):
                info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
            elif stat.S_ISDIR(status.st_mode):
                info.type = tarfile.DIRTYPE
                waiting += [(os.path.join(path, n), name + "/" + n) for n in sorted(os.listdir(path), reverse=True)]
            elif stat.S_ISREG(status.st_mode):
                # Not to be led elsewhere, nor held up, by what took the file's place since.
                data = open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb", buffering=0)  # noqa: SIM115
                info.size = os.fstat(data.fileno()).st_size
            else:
                raise ArchiveError("UnsafePath", f"{path} is a pipe or a device")
            yield info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
            left = info.size
            while data is not None and left:
                piece = data.read(min(left, PIECE_BYTES))
                if not piece:
                    raise ArchiveError("NoSuchPath", f"{path} became shorter while it was read")
                left -= len(piece)
                yield piece
            yield bytes(-info.size % 512)
        except OSError as error:
            raise ArchiveError("NoSuchPath", f"{path}: {error.strerror}") from error
        finally:
            if data is not None:
                data.close()


def unpack_archive(stream: BinaryIO, folder: str) -> None:
    """Unpack a tar stream into ``folder``, which must exist. Owners are not kept, nor are set-user-id bits.

    A symlink may lead anywhere inside the first folder of its member's name, or of ``folder`` where that name starts
    with "./". Symlinks are made last, so that nothing is written through one.

    Raises:
        ArchiveError: UnsafePath, or NoSuchPath where something cannot be written.
    """
    import tarfile

    class Member(tarfile.TarInfo):
        @classmethod
        def fromtarfile(cls, *arguments: Any) -> Any:  # not frombuf: newer Pythons do not come by there
            try:
                return super().fromtarfile(*arguments)
            except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
                ends.append(True)
                raise

    root = os.path.realpath(folder)
    links: dict[str, tuple[str, str]] = {}
    ends: list[bool] = []
    archive: Any
    try:
        with tarfile.open(
            fileobj=stream, mode="r|", bufsize=PIECE_BYTES, errors="surrogateescape", tarinfo=Member
        ) as archive:
            while True:
                member = archive.next()
                if member is None:
                    break
                archive.members = []  # it would remember every one
                _unpack_member(archive, member, root, links)
            if not ends:  # tarfile takes nonsense, or nothing, behind a member for the end
                raise EOFError("it has no end")
            while stream.read(PIECE_BYTES):  # padding: whoever writes it must not find a closed pipe
                pass
        _make_links(links)
    except OSError as error:
        kinds = {errno.ENOSPC: "DiskPressure", errno.EDQUOT: "DiskPressure", errno.EIO: "SandboxUnavailable"}
        kind = kinds.get(error.errno or 0, "NoSuchPath")
        raise ArchiveError(kind, f"{error.filename or folder}: {error.strerror or error}") from error
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise ArchiveError("BadArchive", f"not a whole archive: {error}") from error


def _unpack_member(archive: Any, member: Any, root: str, links: dict[str, tuple[str, str]]) -> None:
    path = _place(root, member.name)
    parent = root if path == root else os.path.dirname(path)
    if not _inside(os.path.realpath(parent), root) or any(_inside(path, link) and path != link for link in links):
        raise ArchiveError("UnsafePath", f"{member.name!r} leads through a link")
    os.makedirs(parent, exist_ok=True)
    if member.isdir():
        if not os.path.isdir(path) or os.path.islink(path):
            _clear(path)
            os.mkdir(path)
            os.chmod(path, member.mode & 0o777 | 0o700)
    elif member.issym():
        first = next(part for part in member.name.split("/") if part)
        links[path] = (member.linkname, root if first == "." else os.path.join(root, first))
    elif member.islnk():
        source = _place(root, member.linkname)
        if os.path.islink(source) or not _inside(os.path.realpath(source), root):
            raise ArchiveError("UnsafePath", f"{member.name!r} is a hard link out of the folder")
        _clear(path)
        os.link(source, path)
    elif member.isreg():
        _clear(path)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            source_file, left = archive.extractfile(member), member.size
            while left:
                piece = source_file.read(min(left, PIECE_BYTES))
                if not piece:
                    raise EOFError(f"{member.name!r} ends early")
                left -= len(piece)
                file.write(piece)
            os.fchmod(file.fileno(), member.mode & 0o777)
        os.utime(path, (member.mtime, member.mtime))
    else:
        raise ArchiveError("UnsafePath", f"{member.name!r} is a pipe or a device")


def _place(root: str, name: str) -> str:
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        raise ArchiveError("UnsafePath", f"{name!r} leads out of the folder")
    return os.path.join(root, *[part for part in parts if part not in ("", ".")]) if name.strip("./") else root


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _clear(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _make_links(links: dict[str, tuple[str, str]]) -> None:
    for path, (target, _) in links.items():
        _clear(path)
        os.symlink(target, path)
    for path, (target, folder) in links.items():
        if not _inside(os.path.realpath(path), os.path.realpath(folder)) or path == folder:
            for made in links:
                _clear(made)
            raise ArchiveError("UnsafePath", f"the link {path!r} leads out of its folder, to {target!r}")
