"""Making an image of a root file system, without a registry."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import AsyncIterable, Sequence

from rollcage.sandbox.drivers.docker_api import Engine, one_line
from rollcage.sandbox.drivers.docker_config import LABEL_RECIPE
from rollcage.sandbox.errors import HostUnavailable

from aiodocker import DockerError  # isort: skip  (docker_api says how to get it where it is missing)


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


async def has_recipe(engine: Engine, image: str, recipe: str) -> bool:
    """Return whether an image is there, made by that recipe."""
    async with engine.call(f"look for {image}") as docker:
        try:
            found = await docker.images.inspect(image)
        except DockerError as error:
            if error.status == 404:
                return False
            raise
        return ((found["Config"] or {}).get("Labels") or {}).get(LABEL_RECIPE) == recipe


def add_file(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    """Put a file into an archive."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    archive.addfile(member, io.BytesIO(data))
