"""Building an image of a folder and a Dockerfile, without network; it is there whole or not at all."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import tarfile
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from rollcage.sandbox.drivers.docker_api import Engine, one_line
from rollcage.sandbox.errors import ImageMissing
from rollcage.sandbox.images.importing import add_file

_CHUNK_BYTES = 1 << 20
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_ITS_OWN = ("--->", "Removing intermediate container")
"""What the daemon says of itself, between the lines that steps write."""


async def build_image(
    engine: Engine, image: str, dockerfile: str, folders: Mapping[str, Path], *, label: str, timeout_s: float
) -> None:
    """Build an image; nothing can be fetched from inside.

    Args:
        engine: the host that gets it.
        image: its name; it is given to the finished image only.
        dockerfile: its text; every stage must have ``LABEL <label>=...``.
        folders: name -> folder or file here, for COPY. Times and owners are left out, such that Docker knows it again.
        label: of what building leaves behind (also an image that had the name before), which is removed.
        timeout_s: for all of it.

    Raises:
        ImageMissing: a step failed; the message has the last line that it wrote.
        HostUnavailable: the daemon did not answer in time.
    """
    what = f"build {image}"
    query = [("t", image), ("networkmode", "none"), ("forcerm", "1")]
    with tempfile.TemporaryDirectory(prefix="rollcage-image-") as folder:
        context = Path(folder) / "context.tar"
        await asyncio.to_thread(_pack, context, dockerfile, folders)
        async with engine.call(what, timeout_s=timeout_s):
            async with await engine.request("POST", "build", query=query, data=_chunks(context)) as response:
                said = ""
                async for line in response.content:
                    answer = json.loads(line)
                    line_said = _COLOURS.sub("", str(answer.get("stream", ""))).strip()
                    said = said if line_said.startswith(_ITS_OWN) else line_said or said
                    if "error" in answer:
                        raise ImageMissing(
                            f"{engine.endpoint} did not {what}: {one_line(answer['error'])}: {one_line(said)}"
                        )
            unused = json.dumps({"dangling": ["true"], "label": [label]})
            async with await engine.request("POST", "images/prune", query=[("filters", unused)]) as response:
                await response.read()


def _pack(context: Path, dockerfile: str, folders: Mapping[str, Path]) -> None:
    with tarfile.open(context, mode="w") as archive:
        add_file(archive, "Dockerfile", dockerfile.encode())
        for name, path in sorted(folders.items()):
            archive.add(path, name, filter=_anonymous)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK_BYTES):
            yield chunk


def machine() -> str:
    """Return this machine's architecture as Linux names it."""
    name = platform.machine()
    return {"arm64": "aarch64", "AMD64": "x86_64"}.get(name, name)
