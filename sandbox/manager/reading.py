"""One file out of a tar stream, in memory."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator

from rollcage.sandbox.errors import NoSuchPath, SandboxError, UnsafePath

OVERHEAD_BYTES = 64 * 1024
"""More than the headers and the padding of an archive with one file."""


async def read_file(chunks: AsyncIterator[bytes], source: str, max_bytes: int) -> bytes:
    """Return the content of the one file in a tar stream.

    Args:
        chunks: the stream.
        source: its path, for messages.
        max_bytes: it may not be larger.

    Raises:
        NoSuchPath: it is no file. UnsafePath: it is larger. SandboxError: that is no tar stream.
    """
    archive = bytearray()
    async for chunk in chunks:
        archive += chunk
        if len(archive) > max_bytes + OVERHEAD_BYTES:
            raise UnsafePath(f"{source} is larger than {max_bytes} bytes: use `get`, which streams, or a higher limit")
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
            member = tar.next()
            content = tar.extractfile(member) if member is not None and member.isreg() else None
            if content is None:
                raise NoSuchPath(f"{source} is not a file: use `get`")
            data = content.read()
    except tarfile.TarError as error:
        raise SandboxError(f"the archive of {source} cannot be read: {error}") from None
    if len(data) > max_bytes:
        raise UnsafePath(f"{source} is larger than {max_bytes} bytes: use `get`, which streams, or a higher limit")
    return data
