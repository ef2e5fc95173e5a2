"""How a container comes up, and how it goes: create, connect, ready, with deadlines; what fails leaves nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rollcage.sandbox.drivers.base import (
    LABEL_GENERATION,
    LABEL_MANAGER,
    LABEL_RECORD,
    LABEL_SANDBOX,
    Container,
    Observed,
)
from rollcage.sandbox.errors import (
    DaemonUnreachable,
    GuestLost,
    HostUnavailable,
    SandboxError,
    SandboxUnavailable,
    StartFailed,
    StartTimeout,
)
from rollcage.sandbox.guest.base import Guest
from rollcage.sandbox.manager.box import Box, Life
from rollcage.sandbox.manager.fleet import Fleet
from rollcage.sandbox.manager.hosts import Host
from rollcage.sandbox.manager.places import Place
from rollcage.sandbox.types import ExecRequest, SandboxSpec

NUM_LOG_LINES = 50
MAX_LOG_CHARS = 16384
KILLED = 128 + 9
"""Exit code of a main process that SIGKILL ended, as the kernel does when memory is short."""
OOM_PAUSES_S = (0.05, 0.15, 0.3)
"""A daemon may tell that a process has ended before it knows that it was for memory."""
READY_TRY_S = 30.0
"""Longest run of a ready command; then it is tried again."""


class Starts:
    """Starts and removes containers.

    Args:
        fleet: what the rooms share.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def start(self, box: Box, host: Host) -> tuple[Life, dict[int, int]]:
        """Bring up the container of a sandbox's present life, and return the connection and the published ports.

        The caller holds its lock. Whatever fails, and a cancellation, removes the container.

        Raises:
            StartFailed, StartTimeout: with the tail of its log.
            HostUnavailable, DaemonUnreachable, DaemonForbidden, ImageMissing, BadSpec: see `Driver.create`.
        """
        name, spec, phase = box.name, box.info.spec, _Phases(self._fleet)
        try:
            async with phase("create"):
                await self._create(host, self._container(box))
            async with asyncio.timeout(spec.start_timeout_s):
                return await self._inside(box, host, phase)
        except TimeoutError:
            raise StartTimeout(
                f"sandbox {box.info.id} was not ready {spec.start_timeout_s:g} s after its start (phase: {phase.last})",
                log_tail=await self.discard(host, name, with_tail=True),
            ) from None
        except StartFailed as error:
            raise StartFailed(str(error), log_tail=await self.discard(host, name, with_tail=True)) from None
        except (HostUnavailable, DaemonUnreachable, asyncio.CancelledError):  # to wait for its removal helps nobody
            host.leftovers.setdefault(name, None)
            self._fleet.spawn(self.discard(host, name), f"clean {name}")
            raise
        except SandboxError:
            await self.discard(host, name)
            raise

    async def connect(self, host: Host, name: str, spec: SandboxSpec) -> Guest:
        """Connect to the inside of a container that was ready once; raises SandboxError, by a deadline."""
        timeout_s = self._fleet.settings.connect_timeout_s
        try:
            async with asyncio.timeout(timeout_s), host.hands:
                return await host.driver.connect(name, spec)
        except TimeoutError:
            raise SandboxUnavailable(f"the inside of {name} did not answer within {timeout_s:g} s") from None

    async def discard(self, host: Host, name: str, place: Place | None = None, *, with_tail: bool = False) -> str:
        """Remove a container, now or as soon as its host lets us, and give its room back then.

        Returns:
            ``with_tail``: the tail of its log, as `tail`; else "".
        """
        host.leftovers[name] = place or host.leftovers.get(name)
        tail = await self.tail(host, name) if with_tail else ""
        try:
            async with asyncio.timeout(self._fleet.settings.remove_timeout_s), host.hands:
                await host.driver.remove(name)
        except (SandboxError, TimeoutError):
            return tail  # the reconciler goes on
        host.forget(name)
        return tail

    async def inspect(self, host: Host, name: str) -> Observed | None:
        """Return a container, or None where there is none; whether one that was killed was killed for memory is known.

        Raises:
            HostUnavailable, DaemonUnreachable, DaemonForbidden: it does not answer.
        """
        seen = await host.driver.inspect(name)
        for pause_s in OOM_PAUSES_S:
            if seen is None or seen.exit_code != KILLED or seen.oom_killed:
                break
            await asyncio.sleep(pause_s)
            seen = await host.driver.inspect(name) or seen
        return seen

    async def tail(self, host: Host, name: str) -> str:
        """Return the last lines that a container's main process wrote, "" where they cannot be had."""
        try:
            async with asyncio.timeout(self._fleet.settings.connect_timeout_s):
                return (await host.driver.logs(name, num_lines=NUM_LOG_LINES))[-MAX_LOG_CHARS:]
        except (SandboxError, TimeoutError):
            return ""

    def _container(self, box: Box) -> Container:
        info = box.info
        record = {
            "key": info.key,
            "owner": info.owner,
            "spec": info.spec.to_json(),
            "created_at": info.created_at,
            "expires_at": info.expires_at,
            "origin": box.row.origin,
            "image": box.row.image,
        }
        labels = {
            LABEL_MANAGER: self._fleet.store.id,
            LABEL_SANDBOX: info.id,
            LABEL_GENERATION: str(info.generation),
            LABEL_RECORD: json.dumps(record),
        }
        return Container(box.name, info.spec, box.row.image, labels)

    async def _create(self, host: Host, container: Container) -> None:
        for tries_left in reversed(range(self._fleet.settings.num_create_tries)):
            try:
                return await host.driver.create(container)
            except (
                HostUnavailable
            ):  # perhaps it is done, and only the answer was lost: creations are idempotent by name
                if not tries_left or host.condition == "quarantined":
                    raise
                await asyncio.sleep(self._fleet.settings.backoff_s)

    async def _inside(self, box: Box, host: Host, phase: _Phases) -> tuple[Life, dict[int, int]]:
        spec, pause_s = box.info.spec, 0.05
        while True:
            guest: Guest | None = None
            try:
                async with phase("connect"):
                    guest = await host.driver.connect(box.name, spec)
                async with phase("ready"):
                    await _until_ready(guest, spec)
                seen = await host.driver.inspect(box.name) if spec.ports else None
                life, guest = Life(box.info.generation, guest), None
                return life, dict(seen.ports) if seen else {}
            except (GuestLost, SandboxUnavailable, HostUnavailable, DaemonUnreachable):
                await self._raise_if_ended(host, box.name)
            finally:
                if guest is not None:
                    await guest.close()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 1.0)

    async def _raise_if_ended(self, host: Host, name: str) -> None:
        try:
            seen = await self.inspect(host, name)
        except (HostUnavailable, DaemonUnreachable):
            return
        if seen is None or seen.status in ("exited", "dead"):
            code = "an unknown exit code" if seen is None else f"exit code {seen.exit_code}"
            oom = " (killed for memory)" if seen is not None and seen.oom_killed else ""
            raise StartFailed(f"the main process of {name} ended with {code}{oom} before it was ready")


async def _until_ready(guest: Guest, spec: SandboxSpec) -> None:
    pause_s = 0.05
    while spec.ready_command:
        result = await guest.exec(ExecRequest(spec.ready_command, timeout_s=READY_TRY_S))
        if result.ok:
            return
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.5)


class _Phases:
    """Times the phases of one start."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self.last = fleet, ""

    @asynccontextmanager
    async def __call__(self, name: str) -> AsyncIterator[None]:
        self.last = name
        begin_s = asyncio.get_running_loop().time()
        yield
        self._fleet.meter.created(name, asyncio.get_running_loop().time() - begin_s)
