"""Sandboxes that are plain processes: for trusted code only."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TypeVar

from rollcage.sandbox.drivers.base import LABEL_MANAGER, Container, HostEvent, HostStatus, Observed
from rollcage.sandbox.drivers.process_agent import AgentPipe
from rollcage.sandbox.drivers.process_folder import ContainerFolder, ImageFolder, kill_all
from rollcage.sandbox.errors import BadSpec, HostUnavailable, ImageMissing, SandboxUnavailable, StartFailed
from rollcage.sandbox.guest.base import Guest
from rollcage.sandbox.guest.channel import open_agent
from rollcage.sandbox.guest.program import agent_command
from rollcage.sandbox.types import SandboxSpec

EMPTY_IMAGE = "rollcage-base"
"""The one image that is always there: an empty folder."""

T = TypeVar("T")


class ProcessDriver:
    """A `Driver` whose containers are folders and processes of this machine, of this user. Linux only.

    It isolates NOTHING: commands can read, change and kill whatever this user can, and no limit of a specification
    (CPUs, memory, processes, disk, network, user, read-only) holds. Use it for code that you would run in your own
    shell, where there is no Docker. Commands start in the container's copy of ``workdir``; relative paths are meant
    from there, absolute ones are the machine's. Ports are the machine's own.

    An image is a folder: `EMPTY_IMAGE` or a snapshot. A snapshot holds the container's folder, not what was written
    elsewhere. All is kept in files under ``root``, and containers outlive this process, so the next one finds them.

    Args:
        root: folder for containers and images; made.
        call_timeout_s: longest time of one call, copying apart.
        python: interpreter of the agent.
    """

    def __init__(self, root: str | Path, *, call_timeout_s: float = 30.0, python: str = sys.executable) -> None:
        self._root = Path(root).absolute()
        self._call_timeout_s = call_timeout_s
        self._python = python
        self.endpoint = f"process://{self._root}"
        self._locks: dict[str, asyncio.Lock] = {}
        self._watched: dict[str, int] = {}
        self._listeners: set[asyncio.Queue[tuple[str, HostEvent] | None]] = set()
        self._pipes: set[AgentPipe] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def create(self, container: Container) -> None:
        """See `Driver.create`."""
        if not sys.platform.startswith("linux"):
            raise BadSpec("Process sandboxes need Linux: use Docker on this machine.")
        async with self._lock(container.name):
            folder = self._folder(container.name)
            saved = await self._do(folder.load)
            if saved is None or not saved.pid:
                await self._do(lambda: self._start(folder, container), timeout_s=600.0)
                self._tell(folder, "start")
            self._watch(folder)

    def _start(self, folder: ContainerFolder, container: Container) -> None:
        spec = container.spec
        image = container.image or spec.image
        source = ImageFolder(self._root, image)
        if image != EMPTY_IMAGE and not source.exists():
            raise ImageMissing(
                f"There is no image {image!r} under {self._root}: use {EMPTY_IMAGE!r} (an empty folder) or a snapshot."
            )
        env = self._env(folder, spec)
        program = shutil.which(spec.command[0], path=env["PATH"]) if spec.command else "/bin/sh"
        if program is None:
            raise StartFailed(f"Container {container.name}: there is no program {spec.command[0]!r} on this machine.")
        folder.prepare(source if source.exists() else None, spec, container.labels)
        folder.start(spec.command or ("/bin/sh", "-c", "while :; do sleep 86400; done"), env, spec)

    async def connect(self, name: str, spec: SandboxSpec) -> Guest:
        """See `Driver.connect`."""
        folder = self._folder(name)
        observed = await self.inspect(name)
        if observed is None or observed.status != "running":
            raise SandboxUnavailable(
                f"Container {name} does not run.",
                state=observed.status if observed else "",
                exit_code=observed.exit_code if observed else None,
                log_tail=await self.logs(name, num_lines=20),
            )
        self._watch(folder)
        pipe = await AgentPipe.start(
            agent_command(self._python), self._env(folder, spec), folder.workdir(spec), folder.agent_log, self._pipes
        )
        return await open_agent(pipe, timeout_s=self._call_timeout_s)

    async def inspect(self, name: str) -> Observed | None:
        """See `Driver.inspect`."""
        return await self._do(self._folder(name).observe)

    async def list_containers(self, manager: str) -> list[Observed]:
        """See `Driver.list_containers`."""

        def find() -> list[Observed]:
            found = (folder.observe() for folder in ContainerFolder.all_of(self._root))
            return [one for one in found if one is not None and one.labels.get(LABEL_MANAGER) == manager]

        return await self._do(find)

    async def events(self, manager: str) -> AsyncIterator[HostEvent]:
        """See `Driver.events`."""
        queue: asyncio.Queue[tuple[str, HostEvent] | None] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            for observed in await self.list_containers(manager):
                self._watch(self._folder(observed.name))
            while (item := await queue.get()) is not None:
                if item[0] == manager:
                    yield item[1]
            raise HostUnavailable(f"The driver of {self.endpoint} was closed.")
        finally:
            self._listeners.discard(queue)

    async def logs(self, name: str, *, num_lines: int) -> str:
        """See `Driver.logs`."""
        return await self._do(lambda: self._folder(name).read_log(num_lines))

    async def kill(self, name: str) -> None:
        """See `Driver.kill`; as in Docker, all of the container's processes go with the main one."""
        folder = self._folder(name)
        await self._do(lambda: folder.kill_main(self._call_timeout_s))

    async def remove(self, name: str) -> None:
        """See `Driver.remove`."""
        async with self._lock(name):
            folder = self._folder(name)
            saved = await self._do(folder.load)
            await self._do(lambda: kill_all(folder.marker, self._call_timeout_s))
            await self._do(folder.remove, timeout_s=600.0)
            if saved is not None:
                self._emit(saved.labels.get(LABEL_MANAGER, ""), HostEvent(name, "destroy"))
        self._locks.pop(name, None)

    async def pause(self, name: str) -> None:
        """See `Driver.pause`."""
        folder = self._folder(name)
        if await self._do(lambda: folder.set_paused(True)):
            self._tell(folder, "pause")

    async def unpause(self, name: str) -> None:
        """See `Driver.unpause`."""
        folder = self._folder(name)
        if await self._do(lambda: folder.set_paused(False)):
            self._tell(folder, "unpause")

    async def commit(self, name: str, image: str, labels: Mapping[str, str]) -> None:
        """See `Driver.commit`; raises SandboxUnavailable where there is no such container."""
        folder = self._folder(name)
        if await self._do(folder.load) is None:
            raise SandboxUnavailable(f"There is no container {name}.")
        await self._do(lambda: ImageFolder(self._root, image).save(folder.files, labels), timeout_s=600.0)

    async def list_images(self, manager: str) -> list[str]:
        """See `Driver.list_images`."""
        return await self._do(lambda: ImageFolder.list_of(self._root, manager))

    async def remove_image(self, image: str) -> None:
        """See `Driver.remove_image`; containers hold copies, so none needs it."""
        await self._do(ImageFolder(self._root, image).remove, timeout_s=600.0)

    async def written_bytes(self, manager: str) -> Mapping[str, int]:
        """See `Driver.written_bytes`: what lies in their folders."""
        running = [one.name for one in await self.list_containers(manager) if one.status in ("running", "paused")]
        return await self._do(lambda: {name: self._folder(name).num_bytes() for name in running}, timeout_s=600.0)

    async def status(self) -> HostStatus:
        """See `Driver.status`."""

        def look() -> HostStatus:
            self._root.mkdir(parents=True, exist_ok=True)
            disk = shutil.disk_usage(self._root)
            return HostStatus(
                num_cpus=len(os.sched_getaffinity(0)),
                memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                free_disk_bytes=disk.free,
                disk_bytes=disk.total,
            )

        return await self._do(look)

    async def close(self) -> None:
        """See `Driver.close`."""
        for queue in self._listeners:
            queue.put_nowait(None)
        loop = asyncio.get_running_loop()
        for pidfd in self._watched.values():
            loop.remove_reader(pidfd)
            os.close(pidfd)
        self._watched.clear()
        await asyncio.gather(*self._tasks, *(pipe.close() for pipe in list(self._pipes)))

    def _folder(self, name: str) -> ContainerFolder:
        return ContainerFolder(self._root, name)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    def _env(self, folder: ContainerFolder, spec: SandboxSpec) -> dict[str, str]:
        own = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
        return {"PATH": os.defpath, **own, "HOME": str(folder.workdir(spec)), **spec.env, **folder.marker_env}

    async def _do(self, work: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """Do it in a thread, off the event loop, and by its deadline."""
        limit_s = self._call_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.to_thread(work)
        except TimeoutError:
            raise HostUnavailable(f"{self.endpoint} took longer than {limit_s:g} s.") from None
        except (OSError, shutil.Error) as error:
            raise HostUnavailable(f"{self.endpoint}: {error}") from error

    def _tell(self, folder: ContainerFolder, kind: str, exit_code: int | None = None) -> None:
        saved = folder.load()
        if saved is not None:
            self._emit(saved.labels.get(LABEL_MANAGER, ""), HostEvent(folder.name, kind, exit_code))

    def _emit(self, manager: str, event: HostEvent) -> None:
        for queue in self._listeners:
            queue.put_nowait((manager, event))

    def _watch(self, folder: ContainerFolder) -> None:
        """Have `_on_death` called when the main process ends."""
        saved = folder.load()
        if folder.name in self._watched or saved is None or not saved.is_running():
            return
        try:
            pidfd = os.pidfd_open(saved.pid)
        except ProcessLookupError:
            return
        self._watched[folder.name] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._on_death, folder)

    def _on_death(self, folder: ContainerFolder) -> None:
        pidfd = self._watched.pop(folder.name)
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        self._tell(folder, "die", folder.read_exit_code())
        task = asyncio.create_task(asyncio.to_thread(kill_all, folder.marker, self._call_timeout_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
