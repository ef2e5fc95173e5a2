"""Driver for real Docker engines, local or remote: confined containers, spoken to through the agent inside."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

from rollcage.sandbox.drivers.base import Container, HostEvent, HostStatus, Observed
from rollcage.sandbox.drivers.docker_api import DEFAULT_ENDPOINT, Engine, one_line, read_log, show, together
from rollcage.sandbox.drivers.docker_config import LABEL_GATED, of_manager
from rollcage.sandbox.drivers.docker_guest import connect_guest
from rollcage.sandbox.drivers.docker_network import Gate, gate_name
from rollcage.sandbox.drivers.docker_observed import host_event, image_names, is_running, listed, observed, sort_parts
from rollcage.sandbox.drivers.docker_start import Starter
from rollcage.sandbox.errors import HostUnavailable, SandboxUnavailable
from rollcage.sandbox.guest.base import Guest
from rollcage.sandbox.types import SandboxSpec

import aiohttp  # isort: skip  (docker_api says how to get these where they are missing)
from aiodocker import DockerError  # isort: skip

_EVENTS = ("start", "die", "oom", "pause", "unpause", "destroy")


class DockerDriver:
    """One Docker daemon. See `rollcage.sandbox.drivers.base.Driver`, whose promises these are.

    Args:
        endpoint: "unix:///path", "tcp://host:port" or "ssh://user@host".
        call_timeout_s: no call takes longer, but for those that move or save file systems.
        slow_timeout_s: for those: commit, and pulling an image that is not there.
        gate_image: has Python; runs beside sandboxes that have a network or ports.
    """

    def __init__(
        self,
        endpoint: str = DEFAULT_ENDPOINT,
        *,
        call_timeout_s: float = 30.0,
        slow_timeout_s: float = 600.0,
        gate_image: str = "rollcage-base",
    ) -> None:
        self.endpoint = endpoint
        self.call_timeout_s = call_timeout_s
        self.slow_timeout_s = slow_timeout_s
        self._engine = Engine(endpoint, call_timeout_s=call_timeout_s)
        self._gate = Gate(self._engine, gate_image)
        self._starter = Starter(self._engine, self._gate, slow_timeout_s=slow_timeout_s)
        self._started: dict[str, float] = {}
        """Of running containers, by Docker's id: it never changes."""

    async def create(self, container: Container) -> None:
        """Create and start a container; idempotent by name.

        Raises:
            BadSpec, ImageMissing: it can never work here.
            StartFailed: its main process could not be started. It may exist: `remove` it.
        """
        await self._starter.create(container)

    async def connect(self, name: str, spec: SandboxSpec) -> Guest:
        """Return a new connection to the inside: the agent, or, where there is no Python, plain execs.

        Raises:
            SandboxUnavailable: it does not run.
        """
        return await connect_guest(self._engine, name, spec, self.unavailable)

    async def unavailable(self, name: str, why: str = "") -> SandboxUnavailable:
        """Return the error that tells why a container cannot take a call."""
        found = await self.inspect(name)
        if found is None:
            return SandboxUnavailable(f"there is no container {name}.", state="DELETED")
        log = await self.logs(name, num_lines=20)
        text = f"container {name} is {found.status}"
        if found.exit_code is not None:
            text += f", exit code {found.exit_code}" + (", killed for memory" if found.oom_killed else "")
        return SandboxUnavailable(
            f"{text}{': ' + why if why else '.'}",
            state=found.status,
            exit_code=found.exit_code,
            oom_killed=found.oom_killed,
            log_tail=log,
        )

    async def inspect(self, name: str) -> Observed | None:
        """Return one container, or None where there is none."""
        async with self._engine.call(f"inspect {name}") as docker:
            found = await show(docker, name)
            if found is None:
                return None
            labels = found["Config"].get("Labels") or {}
            gate = await show(docker, gate_name(name)) if labels.get(LABEL_GATED) else None
        return observed(found, gate)

    async def list_containers(self, manager: str) -> list[Observed]:
        """Return all containers with that `LABEL_MANAGER`, the ended ones too.

        What is left of a sandbox whose container is gone counts as one that is "created", so that it gets removed.
        """
        filters = json.dumps(of_manager(manager))
        async with self._engine.call("list containers") as docker:
            containers, networks = await together(
                docker._query_json("containers/json", params={"all": True, "filters": filters}),
                docker._query_json("networks", params={"filters": filters}),
            )
            mains, others = sort_parts(containers, networks)
            # A listing tells neither starts nor ends; the start of one that runs is asked for once.
            asked = [name for name, row in mains.items() if not is_running(row) or row["Id"] not in self._started]
            found = dict(zip(asked, await together(*(show(docker, name) for name in asked)), strict=True))
        rows = []
        for name, row in mains.items():
            if name not in found:
                rows.append(listed(name, row, others.get(name, {}), self._started[row["Id"]]))
            elif (detail := found[name]) is not None:  # else it was removed in between
                rows.append(observed(detail, others.get(name, {})))
                self._started[row["Id"]] = rows[-1].started_at
        living = {row["Id"] for row in mains.values() if is_running(row)}
        self._started = {key: value for key, value in self._started.items() if key in living}
        rows += [
            Observed(name, "created", row.get("Labels") or {}) for name, row in others.items() if name not in mains
        ]
        return rows

    async def events(self, manager: str) -> AsyncIterator[HostEvent]:
        """Yield what happens to those containers, until the connection ends (then it raises HostUnavailable)."""
        filters = json.dumps({**of_manager(manager), "type": ["container"], "event": list(_EVENTS)})
        async with self._engine.call("send events"):
            response = await self._engine.request("GET", "events", query=[("filters", filters)])
        self._engine.endless.add(response)
        try:
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip() and (event := host_event(json.loads(line))):
                        yield event
        except (OSError, aiohttp.ClientError, ValueError) as error:
            raise HostUnavailable(f"the event stream of {self.endpoint} broke: {one_line(error)}") from error
        finally:
            self._engine.endless.discard(response)
            response.close()
        raise HostUnavailable(f"the event stream of {self.endpoint} ended.")

    async def logs(self, name: str, *, num_lines: int) -> str:
        """Return the last lines of the main process, "" where there is no container."""
        return await read_log(self._engine, name, num_lines)

    async def kill(self, name: str) -> None:
        """End the main process at once; nothing where it does not run."""
        async with self._engine.call(f"kill {name}") as docker:
            container = docker.containers.container(name)
            for _ in range(3):
                try:
                    await container.kill()
                    return
                except DockerError as error:
                    if error.status == 404 or "is not running" in error.message:
                        return
                    if "paused" not in error.message:
                        raise
                with suppress(DockerError):  # the frozen cannot die
                    await container.unpause()

    async def remove(self, name: str) -> None:
        """Kill and remove a container with its anonymous volumes and networks; nothing where there is none."""
        async with self._engine.call(f"remove {name}") as docker:
            await self._gate.remove_all(docker, name)
        self._engine.frost.forget(name)

    async def pause(self, name: str) -> None:
        """Freeze its processes; nothing where they are frozen. Raises SandboxUnavailable where it does not run."""
        await self._freeze(name, "pause", "already paused")

    async def unpause(self, name: str) -> None:
        """Undo `pause`; nothing where they run. Raises SandboxUnavailable where it does not run."""
        # The second is what runc says while the daemon's own record lags behind.
        await self._freeze(name, "unpause", "is not paused", "cannot resume a running process")

    async def _freeze(self, name: str, action: str, *done: str) -> None:
        async with self._engine.call(f"{action} {name}") as docker, self._engine.frost.freezing(name):
            try:
                await getattr(docker.containers.container(name), action)()
                return
            except DockerError as error:
                if any(text in error.message for text in done):
                    found = await show(docker, name)
                    if found is not None and found["State"]["Running"]:
                        return
                elif error.status not in (404, 409) and "is not running" not in error.message:
                    raise
        raise await self.unavailable(name)

    async def commit(self, name: str, image: str, labels: Mapping[str, str]) -> None:
        """Save its file system as ``image`` ("repository:tag"); raises SandboxUnavailable where there is none."""
        repository, _, tag = image.partition(":")
        limit_s = self.slow_timeout_s
        async with self._engine.call(f"commit {name}", timeout_s=limit_s) as docker, self._engine.frost.freezing(name):
            try:
                await docker.containers.container(name).commit(
                    repository=repository, tag=tag or "latest", config={"Labels": dict(labels)}
                )
                return
            except DockerError as error:
                if error.status != 404:
                    raise
        raise await self.unavailable(name)

    async def list_images(self, manager: str) -> list[str]:
        """Return the snapshot images with that `LABEL_MANAGER`, oldest first."""
        async with self._engine.call("list images") as docker:
            rows = await docker.images.list(filters=of_manager(manager))
        return [name for row in sorted(rows, key=lambda row: row["Created"]) for name in image_names(row)]

    async def remove_image(self, image: str) -> None:
        """Remove an image; nothing where there is none, or where a container still needs it."""
        async with self._engine.call(f"remove image {image}") as docker:
            try:
                await docker.images.delete(image)
            except DockerError as error:
                if error.status not in (404, 409):
                    raise

    async def written_bytes(self, manager: str) -> Mapping[str, int]:
        """Return how much each running container has written to its own file system, volumes of its image included."""
        filters = json.dumps({**of_manager(manager), "status": ["running"]})
        async with self._engine.call("measure containers") as docker:
            rows = await docker._query_json("containers/json", params={"size": True, "filters": filters})
            mains, _ = sort_parts(rows, [])
            sizes = {name: int(row.get("SizeRw") or 0) for name, row in mains.items()}
            volumes = {
                mount["Name"]: name
                for name, row in mains.items()
                for mount in row.get("Mounts") or []
                if mount.get("Type") == "volume" and mount.get("Name")
            }
            if volumes:
                usage = await docker._query_json("system/df")
                for volume in usage.get("Volumes") or []:
                    if volume["Name"] in volumes:
                        sizes[volumes[volume["Name"]]] += max(0, (volume.get("UsageData") or {}).get("Size", 0))
        return sizes

    async def status(self) -> HostStatus:
        """Return the host's size; its disk only where that is this machine's own."""
        async with self._engine.call("describe itself") as docker:
            info = await docker.system.info()
        free_bytes, disk_bytes = None, None
        if self.endpoint.startswith("unix:"):
            with suppress(OSError):
                disk = shutil.disk_usage(info["DockerRootDir"])
                free_bytes, disk_bytes = disk.free, disk.total
        return HostStatus(int(info["NCPU"]), int(info["MemTotal"]), free_bytes, disk_bytes)

    async def close(self) -> None:
        """Let go of all connections; idempotent. Containers live on."""
        await self._engine.close()
