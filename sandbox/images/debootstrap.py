"""Debian from its archive, on this machine: a root file system that becomes the base image."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from rollcage.sandbox.drivers.docker_api import Engine
from rollcage.sandbox.errors import ImageMissing
from rollcage.sandbox.images.importing import import_root
from rollcage.sandbox.images.running import Progress, process, run

SUITES = {"3.9": "bullseye", "3.11": "bookworm", "3.13": "trixie"}
"""Python -> the release of Debian that brings it."""
_PACKAGES = "ca-certificates,git,patch,procps,python3,python3-pip,python3-venv"
_STAGES = ("Checking", "Resolving", "core packages", "required packages", "base system", "Base system")
_PATH = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def bootstrap(
    engine: Engine,
    image: str,
    changes: Sequence[str],
    *,
    suite: str,
    user_script: str,
    progress: Progress,
    timeout_s: float,
) -> None:
    """Make the base image of Debian's archive; needs root.

    Args:
        engine: the host that gets it.
        image: its name.
        changes: Dockerfile lines.
        suite: the release of Debian.
        user_script: makes the user, and leaves out what nobody needs; runs inside.
        progress: is given a line now and then.
        timeout_s: for all of it.
    """
    folder = Path(tempfile.mkdtemp(prefix="rollcage-base-"))
    root = folder / "root"
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout_s
    try:
        progress(f"debootstrap: Debian {suite} with Python and git (about a minute)")
        command = ("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", suite, str(root))
        await run(command, image, _stages_to(progress), timeout_s)
        await run(("chroot", str(root), "sh", "-c", user_script), image, _stages_to(progress), ends_at - loop.time())
        progress(f"importing {image}")
        # Docker mounts its own /dev, and some hosts let nobody make device files.
        packing = ("tar", "--numeric-owner", "--one-file-system", "--exclude=./dev/*", "-C", str(root), "-c", ".")
        lines = (_PATH, "ENV LANG=C.UTF-8", "WORKDIR /work", 'CMD ["bash"]', *changes)
        async with process(packing) as tar:
            await import_root(engine, _chunks(tar, image), image, lines, timeout_s=ends_at - loop.time())
    finally:
        await asyncio.to_thread(_remove_root, folder)


def _stages_to(progress: Progress) -> Progress:
    def show(line: str) -> None:
        if line.startswith("I: ") and any(stage in line for stage in _STAGES):
            progress(line[3:])

    return show


async def _chunks(process: asyncio.subprocess.Process, image: str) -> AsyncIterator[bytes]:
    assert process.stdout is not None
    while chunk := await process.stdout.read(1 << 20):
        yield chunk
    if await process.wait() != 0:
        raise ImageMissing(f"{image}: tar failed with exit code {process.returncode}")


def _remove_root(folder: Path) -> None:
    for name in ("proc", "sys", "dev"):  # debootstrap may leave these mounted where it is interrupted
        mount = folder / "root" / name
        if mount.is_mount():
            subprocess.run(("umount", "-l", str(mount)), check=False, timeout=30)
    shutil.rmtree(folder)
