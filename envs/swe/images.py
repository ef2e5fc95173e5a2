"""Which image a task's sandboxes are made of: found on the hosts, pulled, or built.

A half-built image is none: an image gets its name when it is finished.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, NamedTuple

from rollcage.envs.swe.build import LABEL, USER, Build, Source
from rollcage.envs.swe.sample import OWN
from rollcage.envs.swe.shelf import building, hold, note, prune, run, shelf
from rollcage.errors import UserError
from rollcage.sandbox.images.running import Progress, silent

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


def close_all(files: Iterable[IO[str]]) -> None:
    """Close files."""
    for file in files:
        file.close()


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
            close_all(held)
            raise
        if len(set(places)) > 1:
            names = ", ".join(place.image for place in places)
            close_all(held)
            raise UserError(
                f"{row['instance_id']}: the hosts have different images ({names}): remove all but one kind."
            )
        return places[0], held

    def _lend_on(self, endpoint: str, row: Mapping[str, Any], held: list[IO[str]]) -> Place:
        from rollcage.sandbox.images.building import machine

        own, names = own_name(row["instance_id"]), official_names(row, machine())
        if (found := self._find(endpoint, (*names, own), held)) is None:
            with building(self._timeout_s):
                found = self._find(endpoint, (*names, own), held)  # another process may have got it meanwhile
                if found is None:
                    found = self._get(endpoint, row, names[0])
                    held.append(note(endpoint, found))
                    prune(self._keep)
        return Place(found, USER if found == own else "0:0", found == own)

    def _find(self, endpoint: str, names: Sequence[str], held: list[IO[str]]) -> str | None:
        """Return the first of the names that there is; its file is held before it is looked for."""
        files = {name: file for name in names if (file := hold(endpoint, name)) is not None}
        try:
            found = run(_first(endpoint, names))
            if found in files:
                held.append(files.pop(found))
            return found
        finally:
            close_all(files.values())

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
    folder = shelf() / "build"
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
                note(endpoint, env_image).close()
            progress("getting what the repository requires, and installing it, without network")
            text, folders = await plan.parts(folder, machine(), env_image, recipe, ends_at - time.monotonic())
            await build_image(host.engine, image, text, folders, label=LABEL, timeout_s=ends_at - time.monotonic())
            return image
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


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
