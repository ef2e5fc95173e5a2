"""Images that need no registry: the base image (Debian, Python, git), and a bare one (busybox) without Python."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rollcage.sandbox.drivers.docker_api import DEFAULT_ENDPOINT, Engine, one_line
from rollcage.sandbox.drivers.docker_config import LABEL_RECIPE
from rollcage.sandbox.errors import HostUnavailable, ImageMissing

from aiodocker import DockerError, DockerStreamError  # isort: skip  (docker_api says how to get it where it is missing)

BASE_IMAGE = "rollcage-base"
BARE_IMAGE = "rollcage-bare"
RECIPE = "base-1"
REGISTRY_IMAGE = "python:3.11-slim"

Progress = Callable[[str], None]
"""Takes one line without its end."""

_PACKAGES = "ca-certificates,git,patch,procps,python3,python3-pip,python3-venv"
_STAGES = ("Checking", "Resolving", "core packages", "required packages", "base system", "Base system")
_PATH = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_USER = """set -e
getent group 1000 >/dev/null || groupadd --gid 1000 agent
getent passwd 1000 >/dev/null || useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash agent
mkdir -p /work && chown 1000:1000 /work
command -v python >/dev/null || ln -s /usr/bin/python3 /usr/local/bin/python
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/* /usr/share/doc/* /usr/share/man/* /usr/share/locale/*
"""
_INSTALL = "RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git patch procps"


def silent(_line: str) -> None:
    """Show no progress."""


async def build_base(
    endpoint: str = DEFAULT_ENDPOINT,
    *,
    source: str = "auto",
    rebuild: bool = False,
    progress: Progress = silent,
    timeout_s: float = 1800.0,
) -> str:
    """Make the image `rollcage-base` on a host where it is not there yet; returns its name.

    Args:
        endpoint: of the Docker daemon.
        source: "registry" (extend ``python:3.11-slim``), "debootstrap" (Debian from its archive, on this machine, as
            root), or "auto": the first where it can be pulled, else the second.
        rebuild: make it even where it is there.
        progress: is given a line now and then.
        timeout_s: for all of it.

    Raises:
        ImageMissing: it cannot be made here; the message says what each way lacks.
        DaemonUnreachable, DaemonForbidden, HostUnavailable: the daemon.
    """
    engine = Engine(endpoint)
    try:
        if not rebuild and await _has_recipe(engine, BASE_IMAGE, RECIPE):
            progress(f"{BASE_IMAGE} is there")
            return BASE_IMAGE
        why = ""
        if source in ("auto", "registry"):
            progress(f"looking for {REGISTRY_IMAGE}")
            why = await _pull(engine, REGISTRY_IMAGE, progress, timeout_s)
            if not why:
                await _extend(engine, progress, timeout_s)
                return BASE_IMAGE
            progress(why)
            if source == "registry":
                raise ImageMissing(why)
        if os.geteuid() != 0 or shutil.which("debootstrap") is None:
            raise ImageMissing(
                f"{BASE_IMAGE} cannot be made here: {why + '; and ' if why else ''}debootstrap needs root and the"
                " package 'debootstrap' (sudo apt-get install debootstrap)."
            )
        await _bootstrap(engine, progress, timeout_s)
        return BASE_IMAGE
    finally:
        await engine.close()


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
        if await _has_recipe(engine, image, recipe):
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


async def import_root(
    engine: Engine, tar: AsyncIterable[bytes], image: str, changes: Sequence[str], *, timeout_s: float
) -> None:
    """Make an image of a tar stream of a root file system, with Dockerfile lines applied. Streamed."""
    repository, _, tag = image.partition(":")
    query = [("fromSrc", "-"), ("repo", repository), ("tag", tag or "latest"), *(("changes", line) for line in changes)]
    what = f"import {image}"
    async with engine.call(what, timeout_s=timeout_s):
        async with await engine.request("POST", "images/create", query=query, data=tar) as response:
            async for line in response.content:
                answer = json.loads(line)
                if "error" in answer:
                    raise HostUnavailable(f"{engine.endpoint} did not {what}: {one_line(answer['error'])}")


async def _has_recipe(engine: Engine, image: str, recipe: str) -> bool:
    async with engine.call(f"look for {image}") as docker:
        try:
            found = await docker.images.inspect(image)
        except DockerError as error:
            if error.status == 404:
                return False
            raise
        return ((found["Config"] or {}).get("Labels") or {}).get(LABEL_RECIPE) == recipe


async def _pull(engine: Engine, image: str, progress: Progress, timeout_s: float) -> str:
    """Pull an image that is not there yet; returns why it could not be had, "" where it is there now."""
    async with engine.call(f"pull {image}", timeout_s=timeout_s) as docker:
        try:
            await docker.images.inspect(image)
            return ""
        except DockerError as error:
            if error.status != 404:
                raise
        try:
            last = ""
            async for line in docker.images.pull(image, stream=True):
                status = line.get("status", "")
                if status != last and "progress" not in line:
                    progress(f"{image}: {status}")
                last = status
        except DockerError as error:
            if error.status == 900:
                raise
            return f"{image} cannot be pulled ({one_line(error.message)})"
    return ""


def _dockerfile() -> str:
    lines = (
        f"FROM {REGISTRY_IMAGE}",
        _INSTALL,
        "COPY user.sh /tmp/user.sh",
        "RUN sh /tmp/user.sh && rm /tmp/user.sh",
        "WORKDIR /work",
        f"LABEL {LABEL_RECIPE}={RECIPE}",
    )
    return "\n".join(lines) + "\n"


async def _extend(engine: Engine, progress: Progress, timeout_s: float) -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w:gz") as archive:
        _add_file(archive, "Dockerfile", _dockerfile().encode())
        _add_file(archive, "user.sh", _USER.encode())
    context.seek(0)
    what = f"build {BASE_IMAGE} from {REGISTRY_IMAGE}"
    async with engine.call(what, timeout_s=timeout_s) as docker:
        lines = docker.images.build(fileobj=context, encoding="gzip", tag=BASE_IMAGE, forcerm=True, stream=True)
        try:
            async for line in lines:
                if line.get("stream", "").startswith("Step "):
                    progress(line["stream"].strip())
        except DockerStreamError as error:
            raise ImageMissing(f"{engine.endpoint} did not {what}: {one_line(error.message)}") from error


async def _bootstrap(engine: Engine, progress: Progress, timeout_s: float) -> None:
    folder = Path(tempfile.mkdtemp(prefix="rollcage-base-"))
    root = folder / "root"
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout_s
    try:
        progress("debootstrap: Debian bookworm with Python and git (about a minute)")
        await _run(
            ("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", str(root)), progress, timeout_s
        )
        await _run(("chroot", str(root), "sh", "-c", _USER), progress, ends_at - loop.time())
        progress(f"importing {BASE_IMAGE}")
        # Docker mounts its own /dev, and some hosts let nobody make device files.
        command = ("tar", "--numeric-owner", "--one-file-system", "--exclude=./dev/*", "-C", str(root), "-c", ".")
        changes = (_PATH, "ENV LANG=C.UTF-8", "WORKDIR /work", 'CMD ["bash"]', f"LABEL {LABEL_RECIPE}={RECIPE}")
        async with _process(command) as tar:
            await import_root(engine, _chunks(tar), BASE_IMAGE, changes, timeout_s=ends_at - loop.time())
    finally:
        await asyncio.to_thread(_remove_root, folder)


async def _run(command: Sequence[str], progress: Progress, timeout_s: float) -> None:
    """Run a command that shows its progress; raises ImageMissing with its last line where it fails."""
    last = ""
    try:
        async with asyncio.timeout(timeout_s), _process(command) as process:
            assert process.stdout is not None
            async for line in process.stdout:
                last = line.decode(errors="replace").strip() or last
                if last.startswith("I: ") and any(stage in last for stage in _STAGES):
                    progress(last[3:])
            code = await process.wait()
    except TimeoutError as error:
        raise ImageMissing(f"{BASE_IMAGE}: {command[0]} did not end within {timeout_s:g} s; last: {last}") from error
    if code != 0:
        raise ImageMissing(f"{BASE_IMAGE}: {command[0]} failed: {last}")


@asynccontextmanager
async def _process(command: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a process in a group of its own, which does not outlive the block."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT if command[0] != "tar" else None,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if process.stdout is not None:
            await process.stdout.read()  # to its end: then the pipe is closed


async def _chunks(process: asyncio.subprocess.Process) -> AsyncIterator[bytes]:
    assert process.stdout is not None
    while chunk := await process.stdout.read(1 << 20):
        yield chunk
    if await process.wait() != 0:
        raise ImageMissing(f"{BASE_IMAGE}: tar failed with exit code {process.returncode}")


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def _remove_root(folder: Path) -> None:
    for name in ("proc", "sys", "dev"):  # debootstrap may leave these mounted where it is interrupted
        mount = folder / "root" / name
        if mount.is_mount():
            subprocess.run(("umount", "-l", str(mount)), check=False, timeout=30)
    shutil.rmtree(folder)


def _bare_root(busybox: bytes, applets: Sequence[str]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, mode in (("bin", 0o755), ("etc", 0o755), ("root", 0o700), ("tmp", 0o1777)):
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, mode
            archive.addfile(member)
        _add_file(archive, "bin/busybox", busybox, 0o755)
        for applet in applets:
            if applet != "busybox":
                member = tarfile.TarInfo(f"bin/{applet}")
                member.type, member.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(member)
        _add_file(archive, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000::/work:/bin/sh\n")
        _add_file(archive, "etc/group", b"root:x:0:\nagent:x:1000:\n")
    return file.getvalue()


def _add_file(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    archive.addfile(member, io.BytesIO(data))
