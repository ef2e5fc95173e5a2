"""One file out of a tar stream, in memory."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator

from rollcage.sandbox.errors import BadArchive, NoSuchPath, UnsafePath

OVERHEAD_BYTES = 64 * 1024
"""More than the headers and the padding of an archive with one file."""


async def read_file(chunks: AsyncIterator[bytes], source: str, max_bytes: int) -> bytes:
    """Return the content of the one file in a tar stream.

    Args:
        chunks: the stream.
        source: its path, for messages.
        max_bytes: it may not be larger.

    Raises:
        NoSuchPath: it is a folder, or something else that is no file. UnsafePath: it is larger.
        BadArchive: that is no tar stream.
    """
    archive, is_whole = bytearray(), True
    async for chunk in chunks:
        archive += chunk
        if len(archive) > max_bytes + OVERHEAD_BYTES:
            is_whole = False
            break
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            member = tar.next()
            if member is None or not member.isreg():
                what = "is a folder" if member is not None and member.isdir() else "is not a file"
                raise NoSuchPath(f"{source} {what}: use `get`")
            if not is_whole or member.size > max_bytes:
                raise UnsafePath(
                    f"{source} is larger than {max_bytes} bytes: use `get`, which streams, or a higher limit"
                )
            content = tar.extractfile(member)
            return content.read() if content is not None else b""
    except tarfile.TarError as error:
        raise BadArchive(f"the archive of {source} cannot be read: {error}") from None
