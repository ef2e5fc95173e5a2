"""A look at the members of a tar stream while it passes by: refuses what leads out of the folder it is unpacked in."""

from __future__ import annotations

import posixpath
import tarfile

from rollcage.sandbox.errors import UnsafePath

_BLOCK = 512
_MAX_NAME_BYTES = 1 << 20
_HARD, _SYMBOLIC, _FOLDER = b"1", b"2", b"5"
_PAX, _PAX_ALL, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"


class MemberCheck:
    """Reads headers only; `feed` raises before anything of a bad member may be passed on."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skip = 0
        self._special = b""
        self._special_bytes = 0
        self._name = self._link = ""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream.

        Raises:
            UnsafePath: a member is absolute, has "..", is a device or pipe, or links out of the folder, or out of the
                first folder of its own name.
        """
        view = memoryview(data)
        while view:
            if self._skip:
                step = min(self._skip, len(view))
                self._skip -= step
                view = view[step:]
                continue
            wanted = (_blocks(self._special_bytes) if self._special else _BLOCK) - len(self._buffer)
            self._buffer += view[:wanted]
            view = view[wanted:]
            if len(self._buffer) == (_blocks(self._special_bytes) if self._special else _BLOCK):
                block = bytes(self._buffer)
                self._buffer.clear()
                if self._special:
                    self._read_special(block[: self._special_bytes])
                else:
                    self._read_header(block)

    def _read_header(self, block: bytes) -> None:
        if not any(block):
            return  # the end, or padding
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise UnsafePath(f"not a tar stream: {error}") from error
        if member.type in (_PAX, _PAX_ALL, _LONG_NAME, _LONG_LINK):
            if member.size > _MAX_NAME_BYTES:
                raise UnsafePath(f"a member's name has {member.size} bytes")
            self._special, self._special_bytes = member.type, member.size
            if not member.size:
                self._special = b""
            return
        self._check(self._name or member.name, member.type, self._link or member.linkname)
        self._name = self._link = ""
        if member.isreg():
            self._skip = _blocks(member.size)

    def _read_special(self, data: bytes) -> None:
        kind, self._special = self._special, b""
        if kind == _LONG_NAME:
            self._name = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif kind == _LONG_LINK:
            self._link = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
        else:
            while data:
                length, _, _ = data.partition(b" ")
                if not length.isdigit() or not 0 < int(length) <= len(data):
                    raise UnsafePath("a broken extended header")
                key, _, value = data[len(length) + 1 : int(length) - 1].partition(b"=")
                data = data[int(length) :]
                if key in (b"path", b"GNU.sparse.name"):
                    self._name = value.decode("utf-8", "surrogateescape")
                elif key == b"linkpath":
                    self._link = value.decode("utf-8", "surrogateescape")
                elif key == b"size":
                    raise UnsafePath("a member of 8 GiB or more")

    def _check(self, name: str, kind: bytes, link: str) -> None:
        if name.startswith("/") or ".." in name.split("/"):
            raise UnsafePath(f"{name!r} leads out of the folder")
        if kind == _SYMBOLIC:
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
            top = next((part for part in name.split("/") if part), "")
            is_inside = target.split("/")[0] not in ("..", "") if top == "." else target.startswith(f"{top}/")
            if link.startswith("/") or not is_inside:
                raise UnsafePath(f"{name!r} links out of the folder, to {link!r}")
        elif kind == _HARD:
            if link.startswith("/") or ".." in link.split("/"):
                raise UnsafePath(f"{name!r} links out of the folder, to {link!r}")
        elif kind != _FOLDER and kind not in tarfile.REGULAR_TYPES:
            raise UnsafePath(f"{name!r} is a pipe or a device")


def _blocks(num_bytes: int) -> int:
    return -(-num_bytes // _BLOCK) * _BLOCK
