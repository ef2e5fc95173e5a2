"""The bare image: one static busybox, without Python."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from rollcage.sandbox.drivers.docker_api import DEFAULT_ENDPOINT, Engine
from rollcage.sandbox.drivers.docker_config import LABEL_RECIPE
from rollcage.sandbox.errors import ImageMissing
from rollcage.sandbox.images import BARE_IMAGE
from rollcage.sandbox.images.importing import add_file, has_recipe, import_root


async def build_bare(
    endpoint: str = DEFAULT_ENDPOINT,
    *,
    image: str = BARE_IMAGE,
    changes: Sequence[str] = (),
    busybox: str = "/bin/busybox",
) -> str:
    """Make a tiny image of one static busybox, without Python, where it is not there yet; returns its name.

    Args:
        endpoint: of the Docker daemon.
        image: its name.
        changes: Dockerfile lines, such as "VOLUME /data".
        busybox: a static one on this machine.

    Raises:
        ImageMissing: there is no static busybox on this machine.
    """
    recipe = "bare-1 " + " ".join(changes)
    engine = Engine(endpoint)
    try:
        if await has_recipe(engine, image, recipe):
            return image
        if not Path(busybox).is_file():
            raise ImageMissing(f"{image} needs {busybox}: sudo apt-get install busybox-static.")
        process = await asyncio.create_subprocess_exec(busybox, "--list", stdout=asyncio.subprocess.PIPE)
        applets = (await process.communicate())[0].decode().split()
        root = await asyncio.to_thread(_bare_root, Path(busybox).read_bytes(), applets)
        lines = ["ENV PATH=/bin", f'LABEL {LABEL_RECIPE}="{recipe}"', *changes]
        await import_root(engine, _once(root), image, lines, timeout_s=120.0)
        return image
    finally:
        await engine.close()


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _bare_root(busybox: bytes, applets: Sequence[str]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777)):
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, mode
            archive.addfile(member)
        add_file(archive, "bin/busybox", busybox, 0o755)
        for applet in applets:
            if applet != "busybox":
                member = tarfile.TarInfo(f"bin/{applet}")
                member.type, member.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(member)
        add_file(archive, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/work:/bin/sh\n")
        add_file(archive, "etc/group", b"root:x:0:\nagent:x:1000:\n")
    return file.getvalue()
