"""One file out of a tar stream: what it holds, or why it is not to be had."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from rollcage.sandbox.archive import pack
from rollcage.sandbox.errors import NoSuchPath, SandboxError, UnsafePath
from rollcage.sandbox.manager.reading import OVERHEAD_BYTES, read_file


def read(source: Path | bytes, max_bytes: int) -> bytes:
    async def main() -> bytes:
        async with aclosing(pack(source, "name")) as chunks:
            return await read_file(chunks, "/work/name", max_bytes)

    return asyncio.run(main())


@pytest.mark.parametrize("num_bytes", [0, 1, 512, 300_000])
def test_a_file_of_just_the_limit_is_read(num_bytes: int) -> None:
    data = bytes(range(256)) * (num_bytes // 256) + bytes(num_bytes % 256)
    assert read(data, num_bytes) == data


@pytest.mark.parametrize("num_bytes", [1, 512, 300_000])
def test_a_larger_one_is_refused(num_bytes: int) -> None:
    with pytest.raises(UnsafePath, match=f"/work/name is larger than {num_bytes - 1} bytes"):
        read(bytes(num_bytes), num_bytes - 1)


@pytest.mark.parametrize("num_bytes", [0, 10 * OVERHEAD_BYTES])
def test_a_folder_is_called_a_folder_however_large_it_is(tmp_path: Path, num_bytes: int) -> None:
    (tmp_path / "file").write_bytes(bytes(num_bytes))
    with pytest.raises(NoSuchPath, match="/work/name is a folder"):
        read(tmp_path, 100)


def test_what_is_no_archive_is_called_so() -> None:
    async def main() -> None:
        async def chunks():  # type: ignore[no-untyped-def]
            yield b"x" * 1024

        with pytest.raises(SandboxError, match="cannot be read"):
            await read_file(chunks(), "/work/name", 100)

    asyncio.run(main())
