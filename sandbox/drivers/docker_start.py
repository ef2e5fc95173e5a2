"""Creating and starting containers on a Docker daemon, until their main process runs."""

from __future__ import annotations

import asyncio
import itertools
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from rollcage.sandbox.drivers.base import Container
from rollcage.sandbox.drivers.docker_api import Engine, one_line, read_log, show
from rollcage.sandbox.drivers.docker_config import (
    LABEL_RECIPE,
    check_spec,
    container_config,
    is_gated,
    user_ids,
    workdir_archive,
)
from rollcage.sandbox.drivers.docker_network import Gate
from rollcage.sandbox.errors import BadSpec, ImageMissing, StartFailed

from aiodocker import Docker, DockerError  # isort: skip  (docker_api says how to get it where it is missing)

_TINI = re.compile(r"\[FATAL tini[^\]]*\] exec (.*) failed: (.*)")
_RUNC = re.compile(r'exec: ("[^"]*".*?)(?:: unknown)?$')


class Starter:
    """Creates and starts the containers of one host.

    Args:
        engine: the host.
        gate: its gates.
        slow_timeout_s: for pulling an image that is not there.
    """

    def __init__(self, engine: Engine, gate: Gate, *, slow_timeout_s: float) -> None:
        self._engine, self._gate = engine, gate
        self._slow_timeout_s = slow_timeout_s
        self._limits_checked = False

    async def create(self, container: Container) -> None:
        """See `rollcage.sandbox.drivers.base.Driver.create`."""
        check_spec(container)
        await self._check_limits()
        config = container_config(container)
        gated = is_gated(container.spec)
        if gated:
            host, networking = await self._gate.open(container)
            config["HostConfig"].update(host)
            config["NetworkingConfig"] = networking
        try:
            await self._create(container, config)
        except _NoImage:
            await self._pull(config["Image"])
            await self._create(container, config)
        await self._start(container)
        if gated:
            await self._gate.wait_ready(container.name)

    async def _check_limits(self) -> None:
        """Docker drops limits that its kernel cannot set, with no more than a warning: refuse such a host."""
        if self._limits_checked:
            return
        async with self._engine.call("describe itself") as docker:
            info = await docker.system.info()
        missing = [name for name in ("MemoryLimit", "PidsLimit", "CpuCfsQuota") if not info.get(name)]
        if missing:
            raise BadSpec(
                f"{self._engine.endpoint} cannot hold containers to {', '.join(missing)}: enable these cgroups."
            )
        self._limits_checked = True

    async def _create(self, container: Container, config: Mapping[str, Any]) -> None:
        name = container.name
        async with self._engine.call(f"create {name}") as docker:
            # Beside the creation, which is slower.
            archive = asyncio.create_task(self._workdir(docker, container, str(config["Image"])))
            try:
                await self._make(docker, name, config)
                if tar := await archive:
                    path = f"containers/{name}/archive"
                    query = [("path", posixpath.dirname(container.spec.workdir.rstrip("/")))]
                    async with await self._engine.request("PUT", path, query=query, data=tar) as response:
                        await response.read()
            finally:
                archive.cancel()
                await asyncio.gather(archive, return_exceptions=True)

    async def _make(self, docker: Docker, name: str, config: Mapping[str, Any]) -> None:
        for attempt in itertools.count(1):
            try:
                await docker.containers.create(dict(config), name=name)
                return
            except DockerError as error:
                if error.status == 409 and "already in use" in error.message:
                    if await show(docker, name):  # an earlier try's, or one's beside us: go on with it
                        return
                elif error.status == 404 and "image" in error.message.lower():
                    raise _NoImage(error.message) from error
                elif error.status in (400, 409):
                    text = f"{self._engine.endpoint} did not create {name}: {one_line(error.message)}"
                    raise BadSpec(text) from error
                else:
                    raise
            await asyncio.sleep(min(0.05 * attempt, 1.0))  # it is being removed

    async def _workdir(self, docker: Docker, container: Container, image: str) -> bytes:
        """Return the archive that gives the user the working directory, b"" where it is the user's already."""
        tar = workdir_archive(container.spec)
        if not tar or container.spec.workdir != "/work" or user_ids(container.spec) != (1000, 1000):
            return tar
        try:
            labels = (await docker.images.inspect(image))["Config"].get("Labels") or {}
        except DockerError:
            return tar  # the creation says what is wrong
        return b"" if str(labels.get(LABEL_RECIPE, "")).startswith("base-") else tar  # saves 60 ms

    async def _pull(self, image: str) -> None:
        if image.startswith("rollcage-"):
            kind = image.removeprefix("rollcage-").removesuffix(":latest")
            cure = f": run  rollcage sandbox images build {kind}" if kind in ("base", "env") else "."
            raise ImageMissing(f"image {image!r} is not on {self._engine.endpoint}{cure}")
        async with self._engine.call(f"pull {image}", timeout_s=self._slow_timeout_s) as docker:
            try:
                await docker.images.pull(image)
            except DockerError as error:
                if error.status == 900:
                    raise
                why = one_line(error.message)
                raise ImageMissing(
                    f"image {image!r} is not on {self._engine.endpoint} and cannot be pulled: {why}"
                ) from error

    async def _start(self, container: Container) -> None:
        name, command = container.name, container.spec.command
        async with self._engine.call(f"start {name}") as docker:
            try:
                await docker.containers.container(name).start()
            except DockerError as error:
                if error.status == 409 and "paused" in error.message:
                    return  # an earlier try's: it runs
                if "unable to find user" in error.message or "no matching entries" in error.message:
                    raise BadSpec(f"{name}: image has no user {container.spec.user!r}.") from error
                found = _RUNC.search(error.message)
                if found or error.status == 404 or "OCI runtime" in error.message:
                    what = found[1] if found else one_line(error.message)
                    raise StartFailed(f"{name}: its main process could not be started: {what}") from error
                raise
            if not command:
                return
            await _wait_for_exec(docker, name)
            state = (await show(docker, name) or {}).get("State", {})
        if state.get("Status") == "exited" and state.get("ExitCode") in (126, 127):
            log = await read_log(self._engine, name, 20)
            if found := _TINI.search(log):
                raise StartFailed(
                    f"{name}: its main process {found[1]!r} could not be started: {found[2]}.", log_tail=log
                )


async def _wait_for_exec(docker: Docker, name: str) -> None:
    """Wait until the init process, which starts first, has started the command, or has failed to and ended."""
    for attempt in range(1, 51):
        try:
            rows = (await docker.containers.container(name).top(ps_args="-eo pid,comm"))["Processes"] or ()
        except DockerError as error:
            if error.status == 409 or "executable file not found" in error.message:
                return  # it has ended, or its host has no `ps`
            rows = ()  # it is about to end
        if any(row[-1] not in ("docker-init", "tini") and not row[-1].startswith("runc") for row in rows):
            return
        await asyncio.sleep(0.001 * attempt)


class _NoImage(Exception):
    """The image is not on the host."""
