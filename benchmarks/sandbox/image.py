"""The image and the network that all contenders share: the base image with SWE-ReX's server added, and a bridge."""

from __future__ import annotations

import io
import secrets
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollcage.errors import UserError

START_SERVER = b'#!/bin/sh\nPYTHONPATH=/opt/rivals exec python3 -m swerex.server "$@"\n'


@contextmanager
def shared_image(base: str, rivals: Path | None) -> Iterator[tuple[str, str]]:
    """Yield the name of an image and of a bridge network; both are gone afterwards, and all containers of the image.

    Args:
        base: image to start from.
        rivals: Python with the packages to compare with; what it has installed goes into the image.

    Raises:
        UserError: Docker says no.
    """
    name = f"rollcage-bench-{secrets.token_hex(4)}"
    _docker("network", "create", name)
    try:
        _docker("create", "--name", name, base, "true")
        try:
            if rivals is not None:
                _docker("cp", "-", f"{name}:/", stdin=_packages(rivals))
            _docker("commit", name, name)
        finally:
            _docker("rm", "-f", name)
        try:
            yield name, name
        finally:
            if left := _docker("ps", "-aq", "--filter", f"ancestor={name}").split():  # of a contender that was killed
                _docker("rm", "-f", "-v", *left)
            _docker("rmi", "-f", name)
    finally:
        _docker("network", "rm", name)


def _packages(rivals: Path) -> bytes:
    """Return a tar of what the rivals' Python has installed, and of the command that starts their server."""
    show = [str(rivals), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(show, check=True, capture_output=True, text=True).stdout.strip())
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(site, "opt/rivals", filter=_readable)
        command = tarfile.TarInfo("usr/local/bin/swerex-remote")
        command.size, command.mode = len(START_SERVER), 0o755
        archive.addfile(command, io.BytesIO(START_SERVER))
    return packed.getvalue()


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.mode |= 0o555 if member.isdir() else 0o444
    return member


def _docker(*arguments: str, stdin: bytes = b"") -> str:
    done = subprocess.run(["docker", *arguments], input=stdin, capture_output=True)
    if done.returncode:
        raise UserError(f"docker {arguments[0]}: {done.stderr.decode(errors='replace').strip()[:300]}")
    return done.stdout.decode()
