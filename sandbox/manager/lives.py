"""The lives of a sandbox: what has become of its container, and what follows from that by its restart policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from rollcage.sandbox.drivers.base import Observed
from rollcage.sandbox.errors import (
    BadSpec,
    DaemonForbidden,
    DaemonUnreachable,
    DiskPressure,
    HostUnavailable,
    ImageMissing,
    Overloaded,
    SandboxError,
    SandboxRestarted,
    SandboxUnavailable,
)
from rollcage.sandbox.manager.box import LIVE, Box, Life, container_name
from rollcage.sandbox.manager.fleet import Fleet
from rollcage.sandbox.manager.hosts import Host
from rollcage.sandbox.manager.moves import Moves
from rollcage.sandbox.manager.starts import KILLED, Starts
from rollcage.sandbox.manager.store import DELETED, PAUSED, RUNNING
from rollcage.sandbox.types import RestartPolicy, State

HOPELESS = (BadSpec, ImageMissing)
"""A new life that fails so fails always."""
HOST_TROUBLE = (HostUnavailable, DaemonUnreachable, DaemonForbidden, Overloaded, DiskPressure)
"""A new life that fails so is tried again until the lease ends: it is not the sandbox's fault."""

SETTLE_S = 2.0
"""A daemon may call a container running for a moment after its end, when its inside is gone already."""


class Lives:
    """Ends lives and begins new ones.

    Args:
        fleet: what the rooms share.
        starts: brings containers up.

    Attributes:
        on_live: called when a life begins, or its connection is back.
        on_gone: called with the id of a sandbox that waited in the warm pool and died.
    """

    def __init__(self, fleet: Fleet, starts: Starts) -> None:
        self._fleet, self._starts, self._moves = fleet, starts, Moves(fleet)
        self.on_live: Callable[[Box], None] = lambda box: None
        self.on_gone: Callable[[str], None] = lambda sandbox_id: None

    async def begin(self, box: Box, host: Host, kind: str) -> None:
        """Start the container of its present generation and make it READY, with the event ``kind``; it is locked.

        Raises as `Starts.start`.
        """
        life, ports = await self._starts.start(box, host)
        spec, now = box.info.spec, self._fleet.clock()
        changes: dict[str, Any] = {"started_at": now, "ports": ports, "exit_code": None, "oom_killed": False}
        if kind == "ready" and spec.ttl_s and not box.row.pooled:  # the lease begins when it can be used
            changes["expires_at"] = now + spec.ttl_s
        told = {"started_at": now, "host": host.name}
        box.life = life
        self._fleet.move(box, kind, told, state=State.READY, message="", **changes)
        self.on_live(box)

    def suspect(self, box: Box) -> asyncio.Task[None]:
        """Find out what has become of a sandbox, and do what follows; returns the task that does."""
        if box.examination is None or box.examination.done():
            box.examination = self._fleet.spawn(self._examine(box), f"examine {box.info.id}")
        return box.examination

    def lost(self, box: Box, life: Life) -> asyncio.Task[None]:
        """The connection of a life is gone: `suspect` it."""
        if box.life is life:
            box.life = None
            box.lost.append(life)
            self._fleet.spawn(life.guest.close(), f"clean {box.name}")
        return self.suspect(box)

    def told_of_oom(self, box: Box, container: str) -> None:
        """The host says that the kernel killed something in a life for memory; perhaps only after the life's end."""
        info = box.info
        if container != box.name:
            self._fleet.store.tell(info.id, "oom", {"container": container, "late": True})
        elif info.state in LIVE:
            self.suspect(box)
        elif info.state is State.FAILED and info.exit_code == KILLED and not info.oom_killed:
            self._fleet.meter.oom_killed()
            message = f"{info.message} (killed for memory)"
            self._fleet.move(box, "oom", {"container": container, "late": True}, oom_killed=True, message=message)

    async def condemn(self, box: Box, generation: int, why: str, reason: str) -> None:
        """End a life for ``reason`` (one line), and go on by the restart policy; ``why``: "unhealthy" or "disk".

        Nothing is done where it has a new connection by the time that its lock is free.
        """
        life = box.life
        async with box.lock:
            is_same = box.info.generation == generation and box.life in (life, None)
            if is_same and box.info.state in LIVE and box.row.desired != DELETED:
                await self._died(box, self._fleet.hosts.get(box.info.host), None, why, reason)

    async def restore(self, box: Box, image: str) -> None:
        """Begin a new life from a snapshot's image and wait until it is ready.

        Raises:
            SandboxUnavailable: it is not in a state from which that can be, or the new life failed.
        """
        async with box.lock:
            if box.row.desired == DELETED or box.info.state not in (*LIVE, State.FAILED):
                raise box.unavailable()
            self._fleet.host(box)  # raises where it is gone: the snapshot lies there
            self._recover(box, "restore", "restored by its user", image, desired=RUNNING)
            work = box.work
        if work is not None:
            await asyncio.wait([work])
        if box.info.state is not State.READY:
            raise box.unavailable()

    async def pause(self, box: Box, on: bool) -> None:
        """Freeze its processes, or let them go on; raises SandboxUnavailable, HostUnavailable."""
        async with box.lock:
            if box.info.state not in LIVE or box.row.desired == DELETED:
                raise box.unavailable()
            self._fleet.move(box, "", desired=PAUSED if on else RUNNING)
            await self._align(box, self._fleet.host(box))

    async def delete(self, box: Box, reason: str) -> None:
        """End a sandbox; idempotent. A container that cannot be removed now is removed as soon as its host answers."""
        if box.row.desired != DELETED:
            self._fleet.move(box, "deleting", {"reason": reason}, desired=DELETED)
        if box.work is not None and not box.work.done():
            box.work.cancel()
            await asyncio.wait([box.work])
        async with box.lock:
            if box.info.state is State.DELETED:
                return
            host = self._fleet.hosts.get(box.info.host)
            is_new = box.info.state is State.RECOVERING  # then its former life may not be gone yet
            names = [box.name, container_name(box.info.id, box.info.generation - 1)][: 2 if is_new else 1]
            place, box.place = box.place, None
            self._fleet.move(box, "deleted", {"reason": reason}, state=State.DELETED, message=reason)
            self._end_life(box, box.unavailable)
            if host is None:
                return
            for name in reversed(names):
                await self._starts.discard(host, name, place if name == names[0] else None)

    async def _examine(self, box: Box) -> None:
        async with box.lock:
            host = self._fleet.hosts.get(box.info.host)
            if host is None:
                return
            ends_s, pause_s = asyncio.get_running_loop().time() + SETTLE_S, 0.05
            while box.info.state in LIVE and box.row.desired != DELETED:
                try:
                    return await self._look_at(box, host)
                except SandboxError as error:
                    if asyncio.get_running_loop().time() >= ends_s:  # the reconciler looks again soon
                        return self._fleet.move(box, "", message=f"not seen: {error}")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 0.5)

    async def _look_at(self, box: Box, host: Host) -> None:
        seen, wished = await self._starts.inspect(host, box.name), box.row.desired == PAUSED
        if seen is None or seen.status not in ("running", "paused"):
            return await self._died(box, host, seen, "died", "")
        if (seen.status == "paused") != wished or (box.info.state is State.STOPPED) != wished:
            await self._align(box, host)
        if box.life is None and not wished:
            await self._reconnect(box, host)

    async def _reconnect(self, box: Box, host: Host) -> None:
        guest = await self._starts.connect(host, box.name, box.info.spec)
        text = f"the connection into sandbox {box.info.id} was lost: the outcome of what was under way is unknown"
        self._end_life(box, lambda: SandboxUnavailable(text, state=box.info.state))
        box.life = Life(box.info.generation, guest)
        self._fleet.move(box, "connected", message="")
        self.on_live(box)

    async def _align(self, box: Box, host: Host) -> None:
        paused = box.row.desired == PAUSED
        await (host.driver.pause if paused else host.driver.unpause)(box.name)
        if paused != (box.info.state is State.STOPPED):
            kind, state = ("paused", State.STOPPED) if paused else ("resumed", State.READY)
            self._fleet.move(box, kind, state=state)
            if not paused and box.life is not None:
                self.on_live(box)

    async def _died(self, box: Box, host: Host | None, seen: Observed | None, why: str, reason: str) -> None:
        """A life has ended (locked): tell it, and go on by the policy."""
        info, spec = box.info, box.info.spec
        exit_code, oom_killed = (None, False) if seen is None else (seen.exit_code, seen.oom_killed)
        if oom_killed:
            self._fleet.meter.oom_killed()
        ended = "its container is gone" if seen is None else f"its main process ended with exit code {exit_code}"
        message = reason or ended + (" (killed for memory)" if oom_killed else "")
        tail = "" if host is None else await self._starts.tail(host, box.name)
        told = {"message": message, "exit_code": exit_code, "oom_killed": oom_killed, "started_at": info.started_at}
        outcome: dict[str, Any] = {"exit_code": exit_code, "oom_killed": oom_killed, "log_tail": tail}
        self._fleet.move(box, "died", {**told, "log_tail": tail[-1000:]}, message=message, **outcome)
        if box.row.pooled:
            self._end_life(box, box.unavailable)
            self._fleet.spawn(self.delete(box, f"died in the pool: {message}"), f"clean {info.id}")
            self.on_gone(info.id)
        elif spec.restart is RestartPolicy.FAIL or info.num_restarts >= spec.max_restarts:
            await self._fail(box, host, message)
        else:
            image = self._last_image(box) if spec.restart is RestartPolicy.RESTORE else box.row.origin
            self._recover(box, why, message, image)

    def _last_image(self, box: Box) -> str:
        mine = [each for each in self._fleet.store.snapshots() if each.sandbox_id == box.info.id]
        return mine[-1].image if mine else box.row.origin

    async def _fail(self, box: Box, host: Host | None, message: str) -> None:
        spent = f"; its {box.info.spec.max_restarts} restarts are used up" if box.info.num_restarts else ""
        expires_at = box.info.expires_at or self._fleet.clock() + self._fleet.settings.failed_ttl_s
        place, box.place = box.place, None
        self._fleet.move(box, "failed", state=State.FAILED, message=message + spent, expires_at=expires_at)
        self._end_life(box, box.unavailable)
        if host is not None:
            await self._starts.discard(host, box.name, place)

    def _recover(self, box: Box, why: str, message: str, image: str, **changes: Any) -> None:
        """Leave the present life for a new one from ``image``, which a task brings up (locked)."""
        generation = box.info.generation + 1
        num_restarts = box.info.num_restarts + (why != "restore")
        changes |= {"generation": generation, "num_restarts": num_restarts, "image": image, "message": message}
        told = {"why": why, "image": image or box.info.spec.image}
        self._fleet.move(box, "recovering", told, state=State.RECOVERING, **changes)
        self._fleet.meter.restarted(why)
        text = f"sandbox {box.info.id} was replaced by its life {generation}: {message}"
        self._end_life(box, lambda: SandboxRestarted(text, generation=generation))
        self.recover(box)

    def recover(self, box: Box) -> None:
        """Bring up the new life of a RECOVERING sandbox, unless that is under way."""
        if box.work is None or box.work.done():
            box.work = self._fleet.spawn(self._bring_up(box), f"recover {box.info.id}")

    async def _bring_up(self, box: Box) -> None:
        settings = self._fleet.settings
        num_tries = max(0, box.info.num_restarts - 1)
        while True:
            if num_tries:
                pause_s = min(settings.backoff_s * 2 ** min(num_tries - 1, 16), settings.max_backoff_s)
                await asyncio.sleep(
                    min(pause_s, settings.reconcile_s) if self._fleet.silent_s(box.info.host) else pause_s
                )
            num_tries += 1
            async with box.lock:
                if box.info.state is not State.RECOVERING or box.row.desired == DELETED:
                    return
                try:
                    host = await self._moves.move(box) or await self._moves.clear(box)
                except SandboxError as error:
                    if box.info.message != str(error):
                        self._fleet.move(box, "", message=str(error))
                    continue
                try:
                    return await self._next_life(box, host)
                except SandboxError as error:
                    if await self._give_up(box, host, error):
                        return

    async def _next_life(self, box: Box, host: Host) -> None:
        deadline = asyncio.get_running_loop().time() + self._fleet.settings.call_timeout_s
        if box.place is None:  # it had failed, and given its room back
            admit, spec = self._fleet.admission.admit, box.info.spec
            box.place = await admit(spec, deadline=deadline, owner=box.info.owner, only=[host.name])
        await self._fleet.admission.restart(box.place, deadline=deadline)
        longest_s = self._fleet.settings.recreate_timeout_s + box.info.spec.start_timeout_s
        try:
            async with asyncio.timeout(longest_s):
                await self.begin(box, host, "restarted")
        except TimeoutError:
            raise HostUnavailable(f"host {host.name!r} made no new container within {longest_s:g} s") from None
        finally:
            box.place.started()

    async def _give_up(self, box: Box, host: Host, error: SandboxError) -> bool:
        """A new life did not come up: fail it where there is no hope, or make ready for one more try."""
        info, hosts_fault = box.info, isinstance(error, HOST_TROUBLE)
        tail = getattr(error, "log_tail", "") or box.row.log_tail
        if isinstance(error, HOPELESS) or (not hosts_fault and info.num_restarts >= info.spec.max_restarts):
            self._fleet.move(box, "", log_tail=tail)
            await self._fail(box, host, str(error))
            return True
        # a name of its own for each try: what the last one left can be told from what the next one makes
        changes = {"generation": info.generation + 1, "num_restarts": info.num_restarts + (not hosts_fault)}
        self._fleet.move(box, "recovering", {"message": str(error)}, message=str(error), log_tail=tail, **changes)
        return False

    def _end_life(self, box: Box, why: Callable[[], SandboxError]) -> None:
        if box.life is not None:
            self._fleet.spawn(box.life.guest.close(), f"clean {box.name}")
            box.lost.append(box.life)
        for life in box.lost:
            life.end(why)
        box.life, box.lost = None, []
        box.tell_changed()
