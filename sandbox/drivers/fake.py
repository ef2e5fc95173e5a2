"""An in-memory host with scripted faults: the manager's tests, and users' tests of what they build on it.

Time is the running event loop's, so that it works in virtual time too. What a container does is scripted with
`Behaviour`, what goes wrong between manager and host with `Fault`, and what commands answer with a callable.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from rollcage.sandbox.drivers.base import LABEL_MANAGER, LABEL_SANDBOX, Container, HostEvent, HostStatus, Observed
from rollcage.sandbox.errors import DaemonUnreachable, HostUnavailable, ImageMissing, SandboxUnavailable, StartFailed
from rollcage.sandbox.guest.base import Guest
from rollcage.sandbox.guest.fake import Behaviour, Commands, FakeContainer, FakeGuest
from rollcage.sandbox.types import MIB, SandboxSpec

__all__ = ["Behaviour", "FakeDriver", "Fault"]

T = TypeVar("T")


@dataclass(slots=True)
class Fault:
    """What goes wrong with calls to the host.

    Attributes:
        call: a method's name, of the driver or of the guest ("exec", "ping", "put", "get", "open_session"); "*": any.
        first: from the so-manieth such call on, counted from 1 since the fault was set ...
        times: ... for so many calls; inf: for ever.
        delay_s: it takes so much longer; inf: it never answers.
        error: made anew for each call.
        lost_answer: the call does its work, and then fails or hangs.
    """

    call: str
    first: int = 1
    times: float = 1
    delay_s: float = 0.0
    error: Callable[[], Exception] | None = None
    lost_answer: bool = False
    num_seen: int = 0

    def applies(self, call: str) -> bool:
        """Count a call, and tell whether it is hit."""
        if self.call not in (call, "*"):
            return False
        self.num_seen += 1
        return self.first <= self.num_seen < self.first + self.times

    async def strike(self) -> None:
        """Do the harm."""
        if self.delay_s:
            await asyncio.sleep(min(self.delay_s, 1e9))
        if self.error is not None:
            raise self.error()


class FakeDriver:
    """One fake host; see `Driver`. It outlives the managers that use it, as a real one does.

    Args:
        commands: what commands answer.
        behave: what the next container does.
        create_s: how long a creation takes.
        clock: seconds since the epoch.

    Attributes:
        faults: what goes wrong; add to it and clear it at any time.
        containers, images: what is there now. ``known_images``: those that can be started.
        created: the name of every container that was ever made.
        calls: how often each method was called.
        down: no daemon answers.
        events_lost: events are not told, without any notice.
        host_status: what `status` answers.
    """

    def __init__(
        self,
        *,
        endpoint: str = "fake://host",
        commands: Commands | None = None,
        behave: Callable[[Container], Behaviour] = lambda container: Behaviour(),
        create_s: float = 0.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.endpoint, self.commands, self.behave, self.create_s, self._clock = (
            endpoint,
            commands,
            behave,
            create_s,
            clock,
        )
        self.faults: list[Fault] = []
        self.containers: dict[str, FakeContainer] = {}
        self.images: dict[str, tuple[Mapping[str, str], dict[str, bytes]]] = {}
        self.known_images = {"rollcage-base"}
        self.created: list[str] = []
        self.calls: Counter[str] = Counter()
        self.down = self.events_lost = False
        self.host_status = HostStatus(num_cpus=64, memory_bytes=65536 * MIB, free_disk_bytes=100_000 * MIB)
        self._listeners: set[asyncio.Queue[HostEvent | None]] = set()

    async def faulty(self, call: str, answer: Callable[[], Awaitable[T]]) -> T:
        """Give the answer, or let a fault strike before or after it."""
        self.calls[call] += 1
        if self.down and call not in ("exec", "ping", "put", "get", "open_session"):
            raise DaemonUnreachable(f"no Docker daemon answers at {self.endpoint}")
        faults = [fault for fault in self.faults if fault.applies(call)]
        for fault in faults:
            if not fault.lost_answer:
                await fault.strike()
        result = await answer()
        for fault in faults:
            if fault.lost_answer:
                await fault.strike()
        return result

    async def create(self, container: Container) -> None:
        """See `Driver`."""
        await self.faulty("create", lambda: self._create(container))

    async def connect(self, name: str, spec: SandboxSpec) -> Guest:
        """See `Driver`."""
        return await self.faulty("connect", lambda: self._connect(name))

    async def inspect(self, name: str) -> Observed | None:
        """See `Driver`."""
        return await self.faulty("inspect", lambda: _value(self._observed(name)))

    async def list_containers(self, manager: str) -> list[Observed]:
        """See `Driver`."""
        return await self.faulty("list_containers", lambda: _value([each.observed() for each in self._of(manager)]))

    async def events(self, manager: str) -> AsyncIterator[HostEvent]:
        """See `Driver`."""
        await self.faulty("events", lambda: _value(None))
        queue: asyncio.Queue[HostEvent | None] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._listeners.discard(queue)
        raise HostUnavailable(f"the event stream of {self.endpoint} ended")

    async def logs(self, name: str, *, num_lines: int) -> str:
        """See `Driver`."""
        inside = self.containers.get(name)
        log = "" if inside is None else "\n".join(inside.behaviour.log.splitlines()[-num_lines:])
        return await self.faulty("logs", lambda: _value(log))

    async def kill(self, name: str) -> None:
        """See `Driver`."""
        await self.faulty("kill", lambda: _done(self.die, name, 137))

    async def remove(self, name: str) -> None:
        """See `Driver`."""
        await self.faulty("remove", lambda: _done(self._remove, name))

    async def pause(self, name: str) -> None:
        """See `Driver`."""
        await self.faulty("pause", lambda: _done(self._freeze, name, True))

    async def unpause(self, name: str) -> None:
        """See `Driver`."""
        await self.faulty("unpause", lambda: _done(self._freeze, name, False))

    async def commit(self, name: str, image: str, labels: Mapping[str, str]) -> None:
        """See `Driver`."""
        await self.faulty("commit", lambda: _done(self._commit, name, image, labels))

    async def list_images(self, manager: str) -> list[str]:
        """See `Driver`."""
        mine = [name for name, (labels, _) in self.images.items() if labels.get(LABEL_MANAGER) == manager]
        return await self.faulty("list_images", lambda: _value(mine))

    async def remove_image(self, image: str) -> None:
        """See `Driver`."""
        await self.faulty("remove_image", lambda: _done(self._remove_image, image))

    async def written_bytes(self, manager: str) -> Mapping[str, int]:
        """See `Driver`."""
        found = {each.container.name: each.num_written_bytes for each in self._of(manager) if each.status == "running"}
        return await self.faulty("written_bytes", lambda: _value(found))

    async def status(self) -> HostStatus:
        """See `Driver`."""
        return await self.faulty("status", lambda: _value(self.host_status))

    async def close(self) -> None:
        """See `Driver`."""
        self.break_events()

    def die(self, name: str, exit_code: int = 1, *, oom_killed: bool = False) -> None:
        """End a container's main process."""
        inside = self.containers.get(name)
        if inside is not None and inside.status in ("running", "paused"):
            inside.status, inside.exit_code, inside.oom_killed = "exited", exit_code, oom_killed
            if inside.timer is not None:
                inside.timer.cancel()
            for scope in inside.calls:
                scope.reschedule(asyncio.get_running_loop().time())
            if oom_killed:
                self._tell(name, "oom")
            self._tell(name, "die", exit_code)

    def live(self, sandbox_id: str = "") -> list[str]:
        """Return the names of the running containers, of one sandbox or of all."""
        return [
            name
            for name, inside in self.containers.items()
            if inside.status in ("running", "paused") and sandbox_id in ("", inside.container.labels.get(LABEL_SANDBOX))
        ]

    def break_events(self) -> None:
        """End every event stream, as a daemon does that restarts."""
        for queue in self._listeners:
            queue.put_nowait(None)

    async def _create(self, container: Container) -> None:
        await asyncio.sleep(self.create_s)
        image = container.image or container.spec.image
        if image not in self.images and image not in self.known_images:
            raise ImageMissing(f"there is no image {image!r} on {self.endpoint}")
        inside = self.containers.get(container.name)
        if inside is None:
            inside = self.containers[container.name] = FakeContainer(container, self.behave(container))
            inside.files |= self.images[image][1] if image in self.images else {}
            self.created.append(container.name)
        if inside.behaviour.fails:
            raise StartFailed(f"the main process of {container.name} could not be started")
        if inside.status == "created":
            now_s, behaviour = asyncio.get_running_loop().time(), inside.behaviour
            inside.status, inside.started_at, inside.ready_at_s = (
                "running",
                self._clock(),
                now_s + behaviour.ready_after_s,
            )
            inside.awake.set()
            if behaviour.dies_after_s < float("inf"):
                inside.timer = asyncio.get_running_loop().call_later(
                    behaviour.dies_after_s,
                    lambda: self.die(container.name, behaviour.exit_code, oom_killed=behaviour.oom_killed),
                )
            self._tell(container.name, "start")

    async def _connect(self, name: str) -> Guest:
        inside = self.containers.get(name)
        if inside is None or inside.status != "running":
            raise SandboxUnavailable(f"{name} does not run")
        return FakeGuest(inside, self.commands, self.faulty)

    def _remove(self, name: str) -> None:
        self.die(name, 137)
        if self.containers.pop(name, None) is not None:
            self._tell(name, "destroy")

    def _freeze(self, name: str, on: bool) -> None:
        inside = self.containers.get(name)
        if inside is not None and inside.status == ("running" if on else "paused"):
            inside.status = "paused" if on else "running"
            (inside.awake.clear if on else inside.awake.set)()
            self._tell(name, "pause" if on else "unpause")

    def _commit(self, name: str, image: str, labels: Mapping[str, str]) -> None:
        if name not in self.containers:
            raise SandboxUnavailable(f"there is no {name}")
        self.images[image] = (dict(labels), dict(self.containers[name].files))

    def _remove_image(self, image: str) -> None:
        if not any(image == inside.container.image for inside in self.containers.values()):
            self.images.pop(image, None)

    def _observed(self, name: str) -> Observed | None:
        return self.containers[name].observed() if name in self.containers else None

    def _of(self, manager: str) -> list[FakeContainer]:
        return [each for each in self.containers.values() if each.container.labels.get(LABEL_MANAGER) == manager]

    def _tell(self, name: str, kind: str, exit_code: int | None = None) -> None:
        for queue in () if self.events_lost else self._listeners:
            queue.put_nowait(HostEvent(name, kind, exit_code))


async def _value(value: T) -> T:
    return value


async def _done(effect: Callable[..., None], *arguments: object) -> None:
    effect(*arguments)
