"""Health: each sandbox is probed on its own schedule; K failures among the last N make it UNHEALTHY."""

from __future__ import annotations

import asyncio
from collections import deque

from rollcage.sandbox.errors import GuestLost, SandboxError
from rollcage.sandbox.manager.box import LIVE, Box
from rollcage.sandbox.manager.fleet import Fleet
from rollcage.sandbox.manager.lives import Lives
from rollcage.sandbox.manager.store import RUNNING
from rollcage.sandbox.types import ExecRequest, RestartPolicy, State, Vitals

NOT_KNOWN = "its connection is just being made anew"
"""Says neither that it is well nor that it is not."""


class Usage:
    """How many cores a container uses, from one reading of its CPU time to the next."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None

    def cores(self, now_s: float, cpu_s: float) -> float:
        """Return the mean since the last reading; 0 at the first one."""
        last, self._last = self._last, (now_s, cpu_s)
        return max(cpu_s - last[1], 0.0) / (now_s - last[0]) if last and now_s > last[0] else 0.0


class Health:
    """Watches sandboxes.

    An UNHEALTHY sandbox with restart policy "fail" stays as it is, such that its files can still be saved, and is READY
    again once its probes succeed; with another policy it gets a new life.

    Args:
        fleet: what the rooms share.
        lives: begins new ones.
    """

    def __init__(self, fleet: Fleet, lives: Lives) -> None:
        self._fleet, self._lives = fleet, lives
        self._watches: dict[str, asyncio.Task[None]] = {}

    def watch(self, box: Box) -> None:
        """Watch a sandbox from now on until its life ends; nothing where it is watched already."""
        name = box.name
        if name not in self._watches:
            task = self._watches[name] = self._fleet.spawn(self._watch(box), f"probe {name}")
            task.add_done_callback(lambda _: self._watches.pop(name, None))

    async def _watch(self, box: Box) -> None:
        generation, probe, rng = box.info.generation, box.info.spec.probe, self._fleet.rng
        loop, recent = asyncio.get_running_loop(), deque[bool](maxlen=probe.num_recent)
        box.num_oom_kills, usage, name = 0, Usage(), box.name
        host = self._fleet.hosts.get(box.info.host)
        cores_used = host.cores_used if host is not None else {}
        try:
            await asyncio.sleep(probe.interval_s * rng.random())  # those that begin together are not probed together
            while box.info.generation == generation and box.info.state in LIVE:
                next_s = loop.time() + probe.interval_s * rng.uniform(0.9, 1.1)
                if box.info.state is not State.STOPPED and box.row.desired == RUNNING:
                    vitals = await self._look(box, recent)
                    cores_used[name] = usage.cores(loop.time(), vitals.cpu_s) if vitals else 0.0
                else:
                    cores_used[name] = 0.0
                await asyncio.sleep(max(next_s - loop.time(), 0.1 * probe.interval_s))
        finally:
            cores_used.pop(name, None)

    async def _look(self, box: Box, recent: deque[bool]) -> Vitals | None:
        """Probe a sandbox once and judge it; returns what it says of itself."""
        generation, begin_s = box.info.generation, asyncio.get_running_loop().time()
        vitals, why = await self._probe(box)
        if box.info.generation != generation or box.info.state not in (State.READY, State.UNHEALTHY):
            return None
        if vitals is None and why == NOT_KNOWN:
            return None
        recent.append(vitals is not None)
        self._fleet.meter.probed(asyncio.get_running_loop().time() - begin_s, vitals is not None)
        if vitals is not None:
            self._count_oom_kills(box, vitals.num_oom_kills)
        await self._judge(box, recent.count(False), why)
        return vitals

    def _count_oom_kills(self, box: Box, num: int) -> None:
        if num > box.num_oom_kills:
            self._fleet.meter.oom_killed(num - box.num_oom_kills)
            box.num_oom_kills = num
            self._fleet.move(box, "oom", {"num_oom_kills": num})

    async def _probe(self, box: Box) -> tuple[Vitals | None, str]:
        """Return the vitals, or None and why it failed."""
        probe = box.info.spec.probe
        if box.life is None and not await self._reconnected(box):
            return None, NOT_KNOWN
        if (life := box.life) is None:
            return None, "there is no connection to its inside"
        box.alone_since_s = None
        try:
            async with asyncio.timeout(probe.timeout_s):
                vitals = await life.guest.ping(timeout_s=probe.timeout_s)
                if probe.command:
                    result = await life.guest.exec(ExecRequest(probe.command, timeout_s=probe.timeout_s))
                    if not result.ok:
                        return None, f"its probe command ended with exit code {result.exit_code}"
                return vitals, ""
        except GuestLost as error:
            await asyncio.wait([self._lives.lost(box, life)])
            return None, str(error)
        except (SandboxError, TimeoutError) as error:
            if box.info.state is State.UNHEALTHY and box.life is life:
                self._lives.lost(box, life)  # perhaps only the agent hangs: a new connection brings a new one
            return None, str(error) or f"it did not answer within {probe.timeout_s:g} s"

    async def _reconnected(self, box: Box) -> bool:
        """Wait for a new connection; returns False where it is too early to say that there is none.

        When a daemon or a manager restarts, many have to wait for their turn.
        """
        loop, examination = asyncio.get_running_loop(), self._lives.suspect(box)
        if box.alone_since_s is None:
            box.alone_since_s = loop.time()
        await asyncio.wait([examination], timeout=box.info.spec.probe.timeout_s)
        is_late = loop.time() - box.alone_since_s >= self._fleet.settings.connect_timeout_s
        return is_late or examination.done()

    async def _judge(self, box: Box, num_failed: int, why: str) -> None:
        spec, state = box.info.spec, box.info.state
        if num_failed < spec.probe.num_failures:
            if state is State.UNHEALTHY:
                self._fleet.move(box, "healthy", state=State.READY, message="")
            return
        if state is State.READY:
            message = f"{num_failed} of its last {spec.probe.num_recent} probes failed: {why}"
            self._fleet.move(box, "unhealthy", {"message": message}, state=State.UNHEALTHY, message=message)
        if spec.restart is not RestartPolicy.FAIL or box.row.pooled:
            try:
                await self._lives.condemn(box, box.info.generation, "unhealthy", box.info.message)
            except SandboxError:
                pass  # its host does not answer: the next probe comes here again
