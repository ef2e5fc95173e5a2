"""How sandboxes come to be: once per key, from the warm pool or through the queue, on a host that can take them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial

from rollcage.sandbox.errors import (
    BadSpec,
    DaemonForbidden,
    DaemonUnreachable,
    HostUnavailable,
    SandboxError,
    SandboxUnavailable,
    StartTimeout,
)
from rollcage.sandbox.manager.box import Box
from rollcage.sandbox.manager.fleet import Fleet
from rollcage.sandbox.manager.hosts import Host
from rollcage.sandbox.manager.lives import Lives
from rollcage.sandbox.manager.pool import Pool
from rollcage.sandbox.manager.store import DELETED, Row
from rollcage.sandbox.types import SandboxInfo, SandboxSpec, Snapshot, State

POOL_OWNER = "(warm pool)"
POOL_DEADLINE_S = 300.0


class Creations:
    """Creates sandboxes; also what the warm pool needs of the manager (`rollcage.sandbox.manager.pool.Keeper`).

    Args:
        fleet: what the rooms share.
        lives: starts them.

    Attributes:
        pool: the warm pool.
    """

    def __init__(self, fleet: Fleet, lives: Lives) -> None:
        self._fleet, self._lives = fleet, lives
        self.pool = Pool(self, rng=fleet.rng)
        lives.on_gone = self.pool.forget
        self._under_way: dict[str, tuple[SandboxSpec, asyncio.Task[Box]]] = {}

    async def create(
        self, spec: SandboxSpec, *, key: str, owner: str, deadline_s: float, origin: Snapshot | None = None
    ) -> Box:
        """Return a ready sandbox; see `rollcage.sandbox.base.Sandboxes.create`.

        Calls with the same key share one creation, which goes on when they leave: they may come back for it. One
        without a key ends with its caller.

        Args:
            spec, key, owner, deadline_s: see there.
            origin: start from this snapshot.
        """
        known, task = self._known(spec, key)
        if known is not None:
            return known
        if task is None:
            making = self._make(spec, key, owner, deadline_s, origin)
            task = self._fleet.spawn(making, f"create {key or 'a sandbox'}")
            if key:
                self._under_way[key] = (spec, task)
                task.add_done_callback(lambda _: self._under_way.pop(key))
        try:
            await asyncio.wait([task], timeout=deadline_s + self._fleet.settings.grace_s)
        except asyncio.CancelledError:
            if not key:
                self._fleet.spawn(self._call_off(task), "clean up a creation")
            raise
        if not task.done():
            if not key:
                self._fleet.spawn(self._call_off(task), "clean up a creation")
            raise StartTimeout(f"the sandbox was not ready within {deadline_s:g} s")
        if task.cancelled():
            raise HostUnavailable("the manager was closed")
        return task.result()

    async def start(self, spec: SandboxSpec) -> str:
        """See `rollcage.sandbox.manager.pool.Keeper`."""
        box = self._new(spec, "", POOL_OWNER, None, pooled=True)
        await self._started(box, asyncio.get_running_loop().time() + POOL_DEADLINE_S, ())
        return box.info.id

    async def check(self, sandbox_id: str) -> bool:
        """See `rollcage.sandbox.manager.pool.Keeper`."""
        box = self._fleet.boxes.get(sandbox_id)
        if box is None or box.info.state is not State.READY:
            return False
        if box.life is None:
            await asyncio.wait([self._lives.suspect(box)])
        if (life := box.life) is None:
            return False
        try:
            await life.guest.ping(timeout_s=box.info.spec.probe.timeout_s)
        except SandboxError:
            await asyncio.wait([self._lives.lost(box, life)])
            return False
        return box.life is life and box.info.state is State.READY

    async def drop(self, sandbox_id: str) -> None:
        """See `rollcage.sandbox.manager.pool.Keeper`."""
        box = self._fleet.boxes.get(sandbox_id)
        if box is not None:
            await self._lives.delete(box, "dropped from the warm pool")

    def _known(self, spec: SandboxSpec, key: str) -> tuple[Box | None, asyncio.Task[Box] | None]:
        """Return the sandbox of a key, or the task that makes it; raises BadSpec where it is another's."""
        box = self._fleet.keys.get(key) if key else None
        under_way, task = self._under_way.get(key, (None, None)) if key else (None, None)
        theirs = under_way if box is None else box.info.spec
        if theirs is not None and theirs != spec:
            raise BadSpec(f"key {key!r} belongs to a sandbox of another specification: use another key, or the same")
        return (None, task) if task is not None else (box, None)

    async def _make(self, spec: SandboxSpec, key: str, owner: str, deadline_s: float, origin: Snapshot | None) -> Box:
        begin_s = asyncio.get_running_loop().time()
        if origin is None and (box := await self._claim(spec, key, owner)) is not None:
            self._fleet.meter.created("claim", asyncio.get_running_loop().time() - begin_s)
            return box
        box = self._new(spec, key, owner, origin, pooled=False)
        await self._started(box, begin_s + deadline_s, () if origin is None else (origin.host,))
        return box

    async def _call_off(self, task: asyncio.Task[Box]) -> None:
        """End a creation that nobody waits for; a sandbox that it has just made goes, too."""
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and task.exception() is None:
            await self._lives.delete(task.result(), "its creator has left")

    async def _claim(self, spec: SandboxSpec, key: str, owner: str) -> Box | None:
        sandbox_id = await self.pool.claim(spec)
        box = self._fleet.boxes.get(sandbox_id) if sandbox_id is not None else None
        if box is None:
            return None
        expires_at = self._fleet.clock() + spec.ttl_s if spec.ttl_s else 0.0
        told = {"key": key, "owner": owner}
        self._fleet.move(box, "claimed", told, key=key, owner=owner, spec=spec, expires_at=expires_at, pooled=False)
        return box

    def _new(self, spec: SandboxSpec, key: str, owner: str, origin: Snapshot | None, *, pooled: bool) -> Box:
        now, image = self._fleet.clock(), "" if origin is None else origin.image
        info = SandboxInfo(secrets.token_hex(6), key, owner, spec, "", State.PENDING, 1, now)
        row = Row(info, image=image, origin=image, pooled=pooled)
        told = {"key": key, "owner": owner, "pooled": pooled, "image": image or spec.image}
        return self._fleet.add(row, "created", told)

    async def _started(self, box: Box, deadline: float, only: Collection[str]) -> None:
        """Start it in a task of its own, which `Lives.delete` can cancel."""
        work = box.work = self._fleet.spawn(self._start(box, deadline, only), f"start {box.info.id}")
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            work.cancel()
            self._fleet.spawn(self._leave_nothing(box, work), f"clean {box.info.id}")
            raise
        if work.cancelled():
            raise box.unavailable()
        work.result()

    async def _leave_nothing(self, box: Box, work: asyncio.Task[None]) -> None:
        """Delete a sandbox that became ready in the moment in which its creation was called off: nobody knows it."""
        await asyncio.wait([work])
        if not work.cancelled() and work.exception() is None:
            await self._lives.delete(box, "its creator has left")

    async def _start(self, box: Box, deadline: float, only: Collection[str]) -> None:
        try:
            await self._start_somewhere(box, deadline, only)
        except SandboxError as error:
            self._fail(box, str(error), getattr(error, "log_tail", ""))
            raise
        except asyncio.CancelledError:
            self._fail(box, "its creation was called off", "")
            raise

    async def _start_somewhere(self, box: Box, deadline: float, only: Collection[str]) -> None:
        await self._raise_if_all_down()
        candidates, generation = list(only or self._fleet.hosts), 0
        while True:
            begin_s = asyncio.get_running_loop().time()
            place = await self._fleet.admission.admit(
                box.info.spec,
                deadline=deadline,
                owner=box.info.owner,
                only=candidates,
                on_wait=partial(self._wait, box),
            )
            host, box.place = self._fleet.hosts[place.host], place
            self._fleet.meter.created("queue", asyncio.get_running_loop().time() - begin_s)
            try:
                async with _within(deadline, box), box.lock:
                    if box.row.desired == DELETED:
                        raise SandboxUnavailable(f"sandbox {box.info.id} was deleted", state=State.DELETED)
                    # a life of its own on each host: one that an earlier host makes after all can be told from it
                    generation += 1
                    begun = {"host": host.name, "generation": generation, "state": State.STARTING, "message": ""}
                    self._fleet.move(box, "starting", {"host": host.name}, **begun)
                    return await self._lives.begin(box, host, "ready")
            except (HostUnavailable, DaemonUnreachable, DaemonForbidden):
                candidates.remove(host.name)
                if not candidates:
                    raise
            finally:
                place.started()
                if box.info.state is not State.READY:
                    self._leave(box, host)

    def _wait(self, box: Box, why: str) -> None:
        self._fleet.move(box, "queued", {"why": why}, message=f"waits for room: {why}")

    async def _raise_if_all_down(self) -> None:
        """Say at once that no daemon answers, in place of waiting for one until the deadline."""
        hosts = list(self._fleet.hosts.values())
        if hosts and all(host.error is not None for host in hosts):
            await asyncio.gather(*(host.look() for host in hosts))
            errors = [host.error for host in hosts if host.error is not None]
            if len(errors) == len(hosts):
                raise errors[0]
            self._fleet.admission.wake()

    def _leave(self, box: Box, host: Host) -> None:
        """Give the room of a start that failed back, once its container is gone from the host."""
        if box.name in host.leftovers:
            host.leftovers[box.name], box.place = box.place, None
        box.release()

    def _fail(self, box: Box, message: str, log_tail: str) -> None:
        if box.row.desired == DELETED:
            return
        if box.row.pooled:
            self._fleet.move(box, "deleted", {"reason": message}, state=State.DELETED, desired=DELETED, message=message)
            return
        ttl_s = self._fleet.settings.failed_ttl_s
        expires_at = self._fleet.clock() + min(box.info.spec.ttl_s or ttl_s, ttl_s)
        told = {"message": message, "log_tail": log_tail[-1000:]}
        outcome = {"message": message, "log_tail": log_tail, "expires_at": expires_at}
        self._fleet.move(box, "failed", told, state=State.FAILED, **outcome)


@asynccontextmanager
async def _within(deadline: float, box: Box) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise StartTimeout(f"sandbox {box.info.id} was not ready by the deadline of its creation") from None
