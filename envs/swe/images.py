"""Which image a task's sandboxes are made of: found on the hosts, pulled, or built; and how many of those stay.

What was pulled or built for an environment is noted in a folder of the user's cache, one file an image. Who works with
an image holds a shared lock on its file; when there are too many, the ones unused for longest go. What a user has
pulled or built by command is never removed. A kill at any moment leaves no lock, and no half-built image: an image gets
its name when it is finished.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

from rollcage.envs.alfworld.cache import cache_root
from rollcage.envs.swe.build import LABEL, USER, Build, Source
from rollcage.envs.swe.sample import OWN
from rollcage.errors import UserError
from rollcage.sandbox.errors import ImageMissing, SandboxError
from rollcage.sandbox.images.running import Progress, silent

T = TypeVar("T")
_POLL_S = 0.2
_REGISTRY_REST_S = 300.0
_silent_since: dict[str, float] = {}
"""Endpoints whose registry could not be reached, and when that was found out."""


class Place(NamedTuple):
    """An image, and as whom its sandboxes run.

    Attributes:
        image: its name.
        user: "uid:gid": who has the repository in it.
        is_ours: it was built here: its repository ends with the base commit.
    """

    image: str
    user: str
    is_ours: bool


def own_name(instance_id: str) -> str:
    """Return the name of the image that is built here for an instance."""
    return f"rollcage-swe/{instance_id.lower()}"


def official_names(row: Mapping[str, Any], machine: str) -> list[str]:
    """Return the names that the official image of a row may have; the first is the one in the registry."""
    if isinstance(row.get("image_name"), str):
        return [row["image_name"] if ":" in row["image_name"] else row["image_name"] + ":latest"]
    arch, instance = {"aarch64": "arm64"}.get(machine, machine), row["instance_id"].lower()
    local = f"sweb.eval.{arch}.{instance}:latest"
    return [f"swebench/{local.replace('__', '_1776_')}", local]


class Images:
    """The images of one environment's tasks.

    Args:
        endpoints: Docker daemons; each has to have the image.
        mirror: see `Source`; "" for none: then nothing is built.
        keep: so many images that were pulled or built here stay, beside those that are in use.
        timeout_s: to pull or build one.
    """

    def __init__(self, endpoints: Sequence[str], *, mirror: str, keep: int, timeout_s: float = 3600.0) -> None:
        self._endpoints, self._mirror, self._keep, self._timeout_s = tuple(endpoints), mirror, keep, timeout_s

    def lend(self, row: Mapping[str, Any]) -> tuple[Place, list[IO[str]]]:
        """Return a row's image, and open files that keep it from being removed until they are closed.

        Raises:
            UserError: it is on no host and cannot be had; the message says which command builds it.
            SandboxError: the daemon.
        """
        held: list[IO[str]] = []
        places = []
        try:
            for endpoint in self._endpoints:
                places.append(self._lend_on(endpoint, row, held))
        except BaseException:
            for file in held:
                file.close()
            raise
        return places[0], held

    def _lend_on(self, endpoint: str, row: Mapping[str, Any], held: list[IO[str]]) -> Place:
        from rollcage.sandbox.images.building import machine

        own, names = own_name(row["instance_id"]), official_names(row, machine())
        if (found := self._find(endpoint, (*names, own), held)) is None:
            with building(self._timeout_s):
                found = self._find(endpoint, (*names, own), held)  # another process may have got it meanwhile
                if found is None:
                    found = self._get(endpoint, row, names[0])
                    held.append(_note(endpoint, found))
                    prune(self._keep)
        return Place(found, USER if found == own else "0:0", found == own)

    def _find(self, endpoint: str, names: Sequence[str], held: list[IO[str]]) -> str | None:
        """Return the first of the names that there is; its file is held before it is looked for."""
        files = {name: file for name in names if (file := _hold(endpoint, name)) is not None}
        try:
            found = run(_first(endpoint, names))
            if found in files:
                held.append(files.pop(found))
            return found
        finally:
            for file in files.values():
                file.close()

    def _get(self, endpoint: str, row: Mapping[str, Any], official: str) -> str:
        is_own = row["repo"].startswith(OWN)
        if not is_own and not (why := run(_pull(endpoint, official, self._timeout_s))):
            return official
        if self._mirror or is_own:
            source = Source(self._mirror)
            return run(build(row, source, endpoint, is_for_env=True, timeout_s=self._timeout_s))
        instance = row["instance_id"]
        raise UserError(
            f"{instance}: no image {official} ({why}), and none was built: run  rollcage swebench build {instance}"
            f" --mirror PATH_OR_URL  (of {row['repo']}), or give the environment mirror=."
        )


async def build(
    row: Mapping[str, Any],
    source: Source,
    endpoint: str,
    *,
    rebuild: bool = False,
    is_for_env: bool = False,
    progress: Progress = silent,
    timeout_s: float = 3600.0,
) -> str:
    """Build a row's image where it is not there yet; returns its name. `building` must be held.

    Args:
        row: in SWE-bench's format.
        source: of its repository.
        endpoint: the Docker daemon that gets it.
        rebuild: build it even where it is there.
        is_for_env: an environment wants it: the image that it stands on counts among those that go when unused.
        progress: is given a line now and then.
        timeout_s: for all of it.

    Raises:
        UserError: there is no specification of the row, or no such mirror.
        ImageMissing: it cannot be built; the message has the last line of what failed.
        DaemonUnreachable, DaemonForbidden, HostUnavailable: the daemon.
    """
    from rollcage.sandbox.images.base import build_base
    from rollcage.sandbox.images.building import build_image, machine
    from rollcage.sandbox.images.catalogue import Catalogue

    plan, image = Build(row, source), own_name(row["instance_id"])
    ends_at = time.monotonic() + timeout_s
    folder = _folder() / "build"
    await build_base(endpoint, python=plan.python, progress=progress, timeout_s=timeout_s)
    try:
        async with Catalogue(endpoint) as host:
            base_id = await host.id_of(plan.base)
            recipe = plan.recipe(base_id)
            if not rebuild and (found := await host.made_by(recipe)):
                if f"{image}:latest" not in found:
                    await host.name(found[0], image)
                progress(f"{image} is there")
                return image
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)  # what a killed build has left
            folder.mkdir(parents=True)
            progress(f"getting {plan.sdist or plan.mirror}")
            await plan.fetch(folder, machine(), ends_at - time.monotonic())
            requirements = plan.requirements(folder)
            env_image = plan.env_image(base_id, requirements)
            if rebuild or not await host.has(env_image):
                progress("getting the wheels of the environment, and installing them, without network")
                text, folders = await plan.env_parts(folder, machine(), requirements, ends_at - time.monotonic())
                await build_image(
                    host.engine, env_image, text, folders, label=LABEL, timeout_s=ends_at - time.monotonic()
                )
            if is_for_env:
                _note(endpoint, env_image).close()
            progress("getting what the repository requires, and installing it, without network")
            text, folders = await plan.parts(folder, machine(), env_image, recipe, ends_at - time.monotonic())
            await build_image(host.engine, image, text, folders, label=LABEL, timeout_s=ends_at - time.monotonic())
            return image
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def prune(keep: int) -> list[str]:
    """Remove all but the newest ``keep`` of the images that were got for environments; returns their names.

    Those that are in use stay.
    """
    removed = []
    files = sorted(_folder().glob("*.image"), key=_used_at, reverse=True)
    for path in files[keep:]:
        # OSError: it is in use, or gone already; SandboxError: its host does not answer. It stays for the next time.
        with suppress(OSError, SandboxError), path.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            noted = json.loads(file.read())
            if run(_remove(noted["endpoint"], noted["image"])):
                removed.append(noted["image"])
                path.unlink()
    return removed


def _folder() -> Path:
    folder = cache_root() / "swebench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _file_of(endpoint: str, image: str) -> Path:
    return _folder() / f"{hashlib.sha256(f'{endpoint} {image}'.encode()).hexdigest()[:32]}.image"


def _used_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _hold(endpoint: str, image: str) -> IO[str] | None:
    """Return the image's file with a shared lock on it; None where it has none, or is being removed."""
    path = _file_of(endpoint, image)
    try:
        file = path.open("r+", encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        os.utime(path)
    except FileNotFoundError:  # it was removed while we waited
        file.close()
        return None
    except BaseException:
        file.close()
        raise
    return file


def _note(endpoint: str, image: str) -> IO[str]:
    path = _file_of(endpoint, image)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"endpoint": endpoint, "image": image}), encoding="utf-8")
    file = partial.open("r+", encoding="utf-8")
    fcntl.flock(file, fcntl.LOCK_SH)
    partial.replace(path)
    return file


@contextmanager
def building(timeout_s: float) -> Iterator[None]:
    """Let one of all processes pull or build at a time: that bounds the disk and memory that it takes."""
    ends_at = time.monotonic() + timeout_s
    with (_folder() / "building").open("w", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends_at:
                    raise ImageMissing(f"others have been building images for {timeout_s:g} s.") from None
                time.sleep(_POLL_S)
        yield


def run(call: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, also where the caller's own thread runs an event loop."""
    from rollcage.sandbox.loop_thread import LoopThread

    loop = LoopThread()
    try:
        return loop.call(call)
    finally:
        loop.stop()


async def _first(endpoint: str, names: Sequence[str]) -> str | None:
    from rollcage.sandbox.images.catalogue import Catalogue

    async with Catalogue(endpoint) as host:
        for name in names:
            if await host.has(name):
                return name
    return None


async def _pull(endpoint: str, image: str, timeout_s: float) -> str:
    from rollcage.sandbox.images.catalogue import Catalogue

    if time.monotonic() - _silent_since.get(endpoint, -_REGISTRY_REST_S) < _REGISTRY_REST_S:
        return "its registry could not be reached a moment ago"
    async with Catalogue(endpoint) as host:
        why, answered = await host.pull(image, timeout_s=timeout_s)
    if not answered:
        _silent_since[endpoint] = time.monotonic()
    return why


async def _remove(endpoint: str, image: str) -> bool:
    from rollcage.sandbox.images.catalogue import Catalogue

    async with Catalogue(endpoint) as host:
        return await host.remove(image)
