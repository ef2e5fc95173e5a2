"""The base image: Debian with Python and git, by way of a registry, or of Debian's archive."""

from __future__ import annotations

import io
import os
import shutil
import tarfile

from rollcage.sandbox.drivers.docker_api import DEFAULT_ENDPOINT, Engine, one_line
from rollcage.sandbox.drivers.docker_config import LABEL_RECIPE
from rollcage.sandbox.errors import ImageMissing
from rollcage.sandbox.images import BASE_PYTHON, base_image
from rollcage.sandbox.images.debootstrap import SUITES, bootstrap
from rollcage.sandbox.images.importing import add_file, has_recipe
from rollcage.sandbox.images.running import Progress, silent

from aiodocker import DockerError, DockerStreamError  # isort: skip  (docker_api says how to get it where it is missing)

RECIPE = "base-1"
REGISTRY_IMAGE = "python:{python}-slim"

_USER = """set -e
getent group 1000 >/dev/null || groupadd --gid 1000 agent
getent passwd 1000 >/dev/null || useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash agent
mkdir -p /work && chown 1000:1000 /work
command -v python >/dev/null || ln -s /usr/bin/python3 /usr/local/bin/python
rm -rf /var/cache/apt/archives/*.deb /var/lib/apt/lists/* /usr/share/doc/* /usr/share/man/* /usr/share/locale/*
"""
_INSTALL = "RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git patch procps"


async def build_base(
    endpoint: str = DEFAULT_ENDPOINT,
    *,
    python: str = BASE_PYTHON,
    source: str = "auto",
    rebuild: bool = False,
    progress: Progress = silent,
    timeout_s: float = 1800.0,
) -> str:
    """Make the image `rollcage-base` on a host where it is not there yet; returns its name.

    Args:
        endpoint: of the Docker daemon.
        python: its version of Python. Another than 3.11 makes an image of its own, such as ``rollcage-base:py3.9``.
        source: "registry" (extend ``python:3.11-slim``), "debootstrap" (the release of Debian that has this Python,
            from its archive, on this machine, as root), or "auto": the first where it can be pulled, else the second.
        rebuild: make it even where it is there.
        progress: is given a line now and then.
        timeout_s: for all of it.

    Raises:
        ImageMissing: it cannot be made here; the message says what each way lacks.
        DaemonUnreachable, DaemonForbidden, HostUnavailable: the daemon.
    """
    image, registry_image = base_image(python), REGISTRY_IMAGE.format(python=python)
    engine = Engine(endpoint)
    try:
        if not rebuild and await has_recipe(engine, image, RECIPE):
            progress(f"{image} is there")
            return image
        why = ""
        if source in ("auto", "registry"):
            progress(f"looking for {registry_image}")
            why = await pull(engine, registry_image, progress, timeout_s)
            if not why:
                await _extend(engine, image, registry_image, progress, timeout_s)
                return image
            progress(why)
            if source == "registry":
                raise ImageMissing(why)
        first = f"{image} cannot be made here: {why + '; and ' if why else ''}"
        if python not in SUITES:
            raise ImageMissing(f"{first}no release of Debian brings Python {python} (there are {', '.join(SUITES)}).")
        if os.geteuid() != 0 or shutil.which("debootstrap") is None:
            raise ImageMissing(
                f"{first}debootstrap needs root and the package 'debootstrap' (sudo apt-get install debootstrap)."
            )
        await bootstrap(
            engine,
            image,
            (f"LABEL {LABEL_RECIPE}={RECIPE}",),
            suite=SUITES[python],
            user_script=_USER,
            progress=progress,
            timeout_s=timeout_s,
        )
        return image
    finally:
        await engine.close()


async def pull(engine: Engine, image: str, progress: Progress, timeout_s: float) -> str:
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


def _dockerfile(registry_image: str) -> str:
    lines = (
        f"FROM {registry_image}",
        _INSTALL,
        "COPY user.sh /tmp/user.sh",
        "RUN sh /tmp/user.sh && rm /tmp/user.sh",
        "WORKDIR /work",
        f"LABEL {LABEL_RECIPE}={RECIPE}",
    )
    return "\n".join(lines) + "\n"


async def _extend(engine: Engine, image: str, registry_image: str, progress: Progress, timeout_s: float) -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w:gz") as archive:
        add_file(archive, "Dockerfile", _dockerfile(registry_image).encode())
        add_file(archive, "user.sh", _USER.encode())
    context.seek(0)
    what = f"build {image} from {registry_image}"
    async with engine.call(what, timeout_s=timeout_s) as docker:
        lines = docker.images.build(fileobj=context, encoding="gzip", tag=image, forcerm=True, stream=True)
        try:
            async for line in lines:
                if line.get("stream", "").startswith("Step "):
                    progress(line["stream"].strip())
        except DockerStreamError as error:
            raise ImageMissing(f"{engine.endpoint} did not {what}: {one_line(error.message)}") from error
