"""The manager: many sandboxes on a few Docker hosts, kept as they should be until their leases end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from rollcage.errors import RollcageError, UserError, did_you_mean
from rollcage.recorder import NullRecorder, Recorder
from rollcage.sandbox.asked import checked_spec
from rollcage.sandbox.drivers.base import Driver
from rollcage.sandbox.errors import SandboxError, SandboxUnavailable
from rollcage.sandbox.manager.admission import Admission
from rollcage.sandbox.manager.box import LIVE, Box
from rollcage.sandbox.manager.breaker import Breaker
from rollcage.sandbox.manager.clock import Clock
from rollcage.sandbox.manager.creations import Creations
from rollcage.sandbox.manager.disk import watch_disk
from rollcage.sandbox.manager.fleet import Fleet, Settings
from rollcage.sandbox.manager.guarded import guarded
from rollcage.sandbox.manager.handle import SandboxHandle
from rollcage.sandbox.manager.health import Health
from rollcage.sandbox.manager.hosts import Host
from rollcage.sandbox.manager.lives import Lives
from rollcage.sandbox.manager.meter import Meter
from rollcage.sandbox.manager.reconciler import Reconciler
from rollcage.sandbox.manager.rooms import Rooms
from rollcage.sandbox.manager.snapshots import Snapshots
from rollcage.sandbox.manager.starts import Starts
from rollcage.sandbox.manager.store import DELETED, Store
from rollcage.sandbox.types import Event, HostInfo, SandboxInfo, SandboxSpec, Snapshot, State

MAX_EVENTS = 1000

T = TypeVar("T")


class Manager:
    """All sandboxes of one store; see `rollcage.sandbox.base.Sandboxes`. Use it with ``async with``, or `open` it.

    Args:
        hosts: drivers by the user's names for them; they belong to the manager, which closes them.
        folder: of the store. One manager at a time; the next one takes over the sandboxes of the last one.
        recorder: who is told the metrics.
        clock: seconds since the epoch.
        settings: how it works.
        seed: of the jitter.

    Attributes:
        store_id: the label of all that it makes (`rollcage.sandbox.drivers.base.LABEL_MANAGER`).

    Raises:
        UserError: another manager has the folder, or there are no hosts.

    >>> import tempfile
    >>> from rollcage.sandbox.drivers.fake import FakeDriver
    >>> async def main(folder):
    ...     async with Manager({"here": FakeDriver()}, folder) as manager:
    ...         sandbox = await manager.create(SandboxSpec())
    ...         return (await sandbox.exec("echo hello")).stdout
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asyncio.run(main(folder))
    b'hello\\n'
    """

    def __init__(
        self,
        hosts: Mapping[str, Driver],
        folder: Path | str,
        *,
        recorder: Recorder | None = None,
        clock: Callable[[], float] = time.time,
        settings: Settings | None = None,
        seed: int | None = None,
    ) -> None:
        if not hosts:
            raise UserError("a manager needs at least one host: give it a Docker driver")
        self.settings = settings or Settings()
        self._rng = random.Random(seed)
        self._meter = Meter(recorder or NullRecorder())
        self._hosts = {name: self._host(name, driver) for name, driver in hosts.items()}
        self._drivers = list(hosts.values())
        self._clock = Clock(clock)
        self._state = "new"
        self._closing: asyncio.Task[None] | None = None
        self._store = Store(Path(folder), self._clock)
        self.store_id = self._store.id

    async def open(self) -> None:
        """Take over what the last manager left, and begin to manage. Idempotent; once closed, it stays so."""
        if self._state == "open":
            return
        if self._state == "closed":
            raise RollcageError("the manager has been closed: make a new one")
        admission = Admission(lambda: [host.info() for host in self._hosts.values()], self.settings.limits)
        self._fleet = fleet = Fleet(
            self._hosts, self._store, admission, self._meter, self.settings, self._clock, self._rng
        )
        self._clock.on_jump = fleet.shift_leases
        starts, snapshots = Starts(fleet), Snapshots(fleet)
        lives = Lives(fleet, starts)
        self._rooms = Rooms(fleet, lives, Creations(fleet, lives), snapshots)
        self._reconciler = Reconciler(fleet, lives, starts, snapshots)
        lives.on_live = Health(fleet, lives).watch
        self._state = "open"
        for name in self._store.drained() & self._hosts.keys():
            self._hosts[name].drained = True
        looks = [fleet.spawn(host.look(), f"first look at {host.name}") for host in self._hosts.values()]
        await asyncio.wait(looks, timeout=self.settings.open_s)  # one that does not answer holds up nobody
        admission.wake()
        self._take_over()
        self._reconciler.begin()
        for host in self._hosts.values():
            fleet.spawn(fleet.for_ever(partial(self._watch_disk, host), pause_s=1.0), f"disk of {host.name}")

    async def __aenter__(self) -> Manager:
        try:
            await self.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def create(
        self, spec: SandboxSpec, *, key: str = "", owner: str = "", deadline_s: float = 120.0
    ) -> SandboxHandle:
        """See `rollcage.sandbox.base.Sandboxes`. A sandbox that has failed frees its key: the next one is new."""
        spec = checked_spec(spec)
        box = await self._opened.creations.create(spec, key=key, owner=owner, deadline_s=deadline_s)
        return SandboxHandle(self._rooms, box, box.info.generation)

    async def attach(self, sandbox_id: str, *, generation: int = 0) -> SandboxHandle:
        """See `rollcage.sandbox.base.Sandboxes`.

        Args:
            sandbox_id: whose.
            generation: the life that the caller knows of, such that he is told of a later one; 0: the present one.
        """
        box = self._opened.fleet.box(sandbox_id)
        return SandboxHandle(self._rooms, box, generation or box.info.generation)

    async def list_sandboxes(self, *, owner: str | None = None) -> list[SandboxInfo]:
        """See `rollcage.sandbox.base.Sandboxes`."""
        infos = [box.info for box in self._opened.fleet.boxes.values() if not box.row.pooled]
        return sorted((info for info in infos if owner in (None, info.owner)), key=lambda info: info.created_at)

    async def hosts(self) -> list[HostInfo]:
        """See `rollcage.sandbox.base.Sandboxes`."""
        admission = self._opened.fleet.admission
        return [admission.reserved(host.info()) for host in self._hosts.values()]

    async def drain(self, host: str, *, on: bool = True) -> None:
        """See `rollcage.sandbox.base.Sandboxes`. Kept over restarts. Raises UserError for an unknown host."""
        if host not in self._hosts:
            raise UserError(f"there is no host {host!r}.{did_you_mean(host, self._hosts)}")
        self._store.drain(host, on)
        self._hosts[host].drained = on
        self._opened.fleet.admission.wake()

    async def events(self, *, after: int = 0) -> list[Event]:
        """See `rollcage.sandbox.base.Sandboxes`."""
        return self._opened.fleet.store.events(after=after, limit=MAX_EVENTS)

    async def snapshots(self) -> list[Snapshot]:
        """See `rollcage.sandbox.base.Sandboxes`."""
        return self._opened.fleet.store.snapshots()

    async def reap(self) -> list[str]:
        """See `rollcage.sandbox.base.Sandboxes`. Hosts that do not answer are left out; raises where none does."""
        _ = self._opened
        removals = self._reconciler.sweep()
        for found in await self._of_hosts(self._reconciler.look):
            removals += found
        if not removals:
            return []
        done, _ = await asyncio.wait(removals, timeout=self.settings.operation_timeout_s)
        return sorted(task.result() for task in done if not task.cancelled() and task.exception() is None)

    async def prune_images(self) -> list[str]:
        """See `rollcage.sandbox.base.Sandboxes`. Hosts that do not answer are left out; raises where none does."""
        snapshots = self._opened.snapshots
        pruned = await snapshots.prune()
        for found in await self._of_hosts(snapshots.sweep):
            pruned += found
        return sorted(pruned)

    def keep_warm(self, spec: SandboxSpec, num_sandboxes: int) -> None:
        """Keep so many sandboxes like ``spec`` ready, for creations that ask for just such a one; 0 ends that."""
        self._opened.creations.pool.set_target(spec, num_sandboxes)

    async def close(self) -> None:
        """See `rollcage.sandbox.base.Sandboxes`. The warm pool is emptied; creations under way are called off.

        It goes on to its end when its caller leaves.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="close the manager")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        was, self._state = self._state, "closed"
        try:
            if was == "open":
                await self._end()
        finally:
            await asyncio.gather(*(driver.close() for driver in self._drivers), return_exceptions=True)
            self._store.close()

    async def _end(self) -> None:
        """End all that it does."""
        fleet = self._fleet
        fleet.is_closed = True
        fleet.admission.close()
        await self._rooms.creations.pool.close(timeout_s=self.settings.close_s)
        lives = [box.life for box in fleet.boxes.values() if box.life is not None]
        for life in lives:
            life.end(lambda: SandboxUnavailable("the manager was closed during the call"))
        await fleet.end_tasks()
        await asyncio.gather(*(life.guest.close() for life in lives), return_exceptions=True)

    async def _of_hosts(self, ask: Callable[[Host], Coroutine[Any, Any, T]]) -> list[T]:
        """Return what the hosts that answer say; raises what the last one raised where none does."""
        answers: list[T] = []
        failure: SandboxError | None = None
        for host in self._hosts.values():
            try:
                answers.append(await ask(host))
            except SandboxError as error:
                failure = error
        if failure is not None and not answers:
            raise failure
        return answers

    @property
    def _opened(self) -> Rooms:
        if self._state != "open":
            raise RollcageError(f"the manager is {self._state}: use it inside  async with Manager(...) as manager")
        return self._rooms

    def _host(self, name: str, driver: Driver) -> Host:
        breaker = Breaker(name, on_change=lambda state: self._meter.circuit(name, state), rng=self._rng)
        settings = self.settings
        behind = guarded(driver, breaker, call_timeout_s=settings.call_timeout_s, slow_s=settings.slow_s)
        return Host(name, behind, breaker, num_hands=settings.num_hands)

    def _take_over(self) -> None:
        """Take in the store's sandboxes. One that was never ready is given up: nobody waits for it any more."""
        fleet, pool = self._fleet, self._rooms.creations.pool
        for row in self._store.rows():
            box, state = fleet.add(row, ""), row.info.state
            if state in (State.PENDING, State.STARTING):
                message = "its manager ended before it was ready"
                fleet.move(box, "deleted", {"reason": message}, state=State.DELETED, desired=DELETED, message=message)
            elif state is not State.FAILED and row.info.host in self._hosts:
                box.place = fleet.admission.adopt(row.info.host, row.info.spec)
            if row.pooled and state is State.READY and row.info.host in self._hosts:
                pool.adopt(row.info.spec, row.info.id)
            elif row.pooled and box.row.desired != DELETED:  # it is nobody's, and no longer what somebody would want
                fleet.move(box, "deleting", {"reason": "left of an earlier manager's warm pool"}, desired=DELETED)
            if box.row.desired != DELETED and state in (State.RECOVERING, *LIVE):
                self._spare(box)
            if state is State.RECOVERING:
                self._rooms.lives.recover(box)
            elif state in LIVE:  # also one whose host does not answer
                self._rooms.lives.on_live(box)

    def _spare(self, box: Box) -> None:
        """Let whoever renewed this sandbox until the last manager ended find it again.

        The lease itself stays as it was: managers that die one after the other do not prolong it again and again.
        """
        now, return_s = self._clock(), self.settings.return_s
        if box.info.expires_at > now - return_s:
            box.spared_until = now + min(box.info.spec.ttl_s or return_s, return_s)

    async def _watch_disk(self, host: Host) -> None:
        await watch_disk(host.driver, self._store.id, partial(self._disk_limits, host), self._stop_writer)

    def _disk_limits(self, host: Host) -> dict[str, int]:
        boxes = (box for box in self._fleet.boxes.values() if box.info.host == host.name and box.info.state in LIVE)
        return {box.name: box.info.spec.disk_bytes for box in boxes if box.info.spec.disk_bytes}

    async def _stop_writer(self, container: str, reason: str) -> None:
        box: Box | None = next((box for box in self._fleet.boxes.values() if box.name == container), None)
        if box is not None:
            self._store.tell(box.info.id, "disk", {"reason": reason})
            await self._rooms.lives.condemn(box, box.info.generation, "disk", reason)
