"""The reconciler: again and again it compares what should be with what each host has, and repairs every difference.

It is level-triggered: events only make it look sooner, and whatever they miss, or an earlier manager left half done,
the next look finds. It acts on a sandbox only after `Lives` has looked at its container once more under the sandbox's
lock, since a list may be older than what has happened since.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from functools import partial

from rollcage.sandbox.drivers.base import LABEL_GENERATION, LABEL_RECORD, LABEL_SANDBOX, HostEvent, Observed
from rollcage.sandbox.manager.box import LIVE, Box, container_name
from rollcage.sandbox.manager.fleet import Fleet
from rollcage.sandbox.manager.hosts import Host
from rollcage.sandbox.manager.lives import Lives
from rollcage.sandbox.manager.snapshots import Snapshots
from rollcage.sandbox.manager.starts import Starts
from rollcage.sandbox.manager.store import DELETED, PAUSED, RUNNING, Row
from rollcage.sandbox.types import SandboxInfo, SandboxSpec, State

EVENTS_PAUSE_S = 1.0
"""Before a broken event stream is opened again."""


class Reconciler:
    """Watches hosts and leases.

    Args:
        fleet: what the rooms share.
        lives, starts, snapshots: what it repairs with.
    """

    def __init__(self, fleet: Fleet, lives: Lives, starts: Starts, snapshots: Snapshots) -> None:
        self._fleet, self._lives, self._starts, self._snapshots = fleet, lives, starts, snapshots
        self._removals: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._look_soon = {name: asyncio.Event() for name in fleet.hosts}

    def begin(self) -> None:
        """Watch from now on."""
        fleet, settings = self._fleet, self._fleet.settings
        for host in fleet.hosts.values():
            self._look_soon[host.name].set()
            for name, work, pause_s in (
                ("reconcile", self._look, 0.0),  # these two wait by themselves
                ("images of", self._look_at_images, 0.0),
                ("events of", self._listen, EVENTS_PAUSE_S),
                ("status of", self._measure, settings.status_s),
            ):
                fleet.spawn(fleet.for_ever(partial(work, host), pause_s=pause_s), f"{name} {host.name}")
        fleet.spawn(fleet.for_ever(self._sweep, pause_s=settings.sweep_s), "sweep")

    async def look(self, host: Host) -> list[asyncio.Task[str]]:
        """Compare one host with the store and repair; returns the tasks that remove what has no right to live.

        Raises:
            HostUnavailable, DaemonUnreachable, DaemonForbidden: it does not answer.
        """
        leftovers = set(host.leftovers)
        expected = leftovers | {box.name for box in self._fleet.boxes.values()}
        seen = {each.name: each for each in await host.driver.list_containers(self._fleet.store.id)}
        self._rebuild(host, seen.values())
        orphans = [each.name for each in seen.values() if not self._has_right(host, each)]
        removals = [self._remove(host, name, name in expected) for name in orphans]
        for name in leftovers - seen.keys():
            host.forget(name)
        for box in list(self._fleet.boxes.values()):
            if box.info.host == host.name:
                self._check(box, seen.get(box.name))
        return removals

    def sweep(self) -> list[asyncio.Task[str]]:
        """Delete those whose lease has ended, and go on with deletions that stopped half way; returns the tasks."""
        now, removals = self._fleet.clock(), []
        for box in self._fleet.boxes.values():
            is_idle = not box.lock.locked() and (box.work is None or box.work.done())
            if is_idle and box.row.desired == DELETED:
                removals.append(self._fleet.spawn(self._delete(box, "its deletion goes on"), f"clean {box.info.id}"))
            elif is_idle and box.info.state in (State.PENDING, State.STARTING):  # not even its failure could be kept
                removals.append(self._fleet.spawn(self._delete(box, "its creation broke off"), f"clean {box.info.id}"))
            elif box.row.desired != DELETED and 0 < box.info.expires_at <= now and box.spared_until <= now:
                removals.append(self._fleet.spawn(self._delete(box, "its lease has ended"), f"clean {box.info.id}"))
        return removals

    def _prune_history(self) -> None:
        settings = self._fleet.settings
        self._fleet.store.prune(
            history_s=settings.history_s, max_events=settings.max_events, max_deleted=settings.max_deleted
        )

    async def _delete(self, box: Box, reason: str) -> str:
        await self._lives.delete(box, reason)
        return box.info.id

    def _has_right(self, host: Host, seen: Observed) -> bool:
        box = self._fleet.boxes.get(seen.labels.get(LABEL_SANDBOX, ""))
        if box is None or box.info.state in (State.FAILED, State.DELETED) or box.info.host != host.name:
            return False
        former = container_name(box.info.id, box.info.generation - 1)
        return seen.name in (box.name, former if box.info.state is State.RECOVERING else box.name)

    def _remove(self, host: Host, name: str, known: bool) -> asyncio.Task[str]:
        task = self._removals.get((host.name, name))
        if task is None:
            if not known:
                self._fleet.meter.orphan("container")
                self._fleet.store.tell("", "orphan", {"container": name, "host": host.name})
            task = self._fleet.spawn(self._discard(host, name), f"clean {name}")
            self._removals[host.name, name] = task
            task.add_done_callback(lambda _: self._removals.pop((host.name, name), None))
        return task

    async def _discard(self, host: Host, name: str) -> str:
        await self._starts.discard(host, name)
        return name

    def _check(self, box: Box, seen: Observed | None) -> None:
        state, desired = box.info.state, box.row.desired
        if desired == DELETED:
            return  # `sweep` goes on with it
        if state is State.RECOVERING:
            self._lives.recover(box)
        elif state in LIVE:
            self._lives.on_live(box)
            running = seen is not None and seen.status == "running"
            as_wished = running if desired == RUNNING else seen is not None and seen.status == "paused"
            settled = (state is State.STOPPED) == (desired == PAUSED)
            if not as_wished or not settled or (box.life is None and desired == RUNNING):
                self._lives.suspect(box)

    def _rebuild(self, host: Host, seen: Iterable[Observed]) -> None:
        """Take in the containers that the store never heard of: it was lost, and their labels say what they are."""
        for each in seen:
            sandbox_id = each.labels.get(LABEL_SANDBOX, "")
            if sandbox_id in self._fleet.boxes:  # rebuilt just now from another life of it: the later one counts
                self._replace_rebuilt(host, each)
            elif each.status in ("running", "paused"):
                row = _row(host.name, each, self._fleet.clock())
                if row is not None and not self._fleet.store.knows(sandbox_id, row.info.created_at):
                    box = self._fleet.add(row, "adopted", {"from": each.name})
                    box.place = self._fleet.admission.adopt(host.name, row.info.spec)
                    self._lives.on_live(box)

    def _replace_rebuilt(self, host: Host, seen: Observed) -> None:
        box = self._fleet.boxes[seen.labels[LABEL_SANDBOX]]
        generation = int(seen.labels.get(LABEL_GENERATION, "0"))
        if generation <= box.info.generation or seen.status not in ("running", "paused"):
            return
        if box.info.host != host.name:  # it had moved
            box.release()
            box.place = self._fleet.admission.adopt(host.name, box.info.spec)
        self._fleet.move(box, "adopted", {"from": seen.name}, generation=generation, host=host.name)
        if box.life is not None:
            self._lives.lost(box, box.life)

    async def _look(self, host: Host) -> None:
        try:
            async with asyncio.timeout(self._fleet.settings.reconcile_s * self._fleet.rng.uniform(0.9, 1.1)):
                await self._look_soon[host.name].wait()
        except TimeoutError:
            pass
        self._look_soon[host.name].clear()
        await self.look(host)

    async def _look_at_images(self, host: Host) -> None:
        await asyncio.sleep(self._fleet.settings.images_s * self._fleet.rng.uniform(0.9, 1.1))
        await self._snapshots.sweep(host)
        await self._snapshots.prune()

    async def _listen(self, host: Host) -> None:
        async for event in host.driver.events(self._fleet.store.id):
            self._hear(host, event)

    def _hear(self, host: Host, event: HostEvent) -> None:
        parts = event.container.split("-")
        box = self._fleet.boxes.get(parts[1]) if len(parts) == 3 else None
        is_present = box is not None and box.name == event.container and box.info.host == host.name
        if event.kind == "start" and not is_present:  # so late that it was given up: it has no right to be there
            self._look_soon[host.name].set()
        elif box is not None and event.kind == "oom":
            self._lives.told_of_oom(box, event.container)
        elif box is not None and is_present and event.kind in ("die", "pause", "unpause", "destroy"):
            self._lives.suspect(box)

    async def _measure(self, host: Host) -> None:
        await host.look()
        self._fleet.admission.wake()

    async def _sweep(self) -> None:
        self.sweep()
        self._prune_history()


def _row(host: str, seen: Observed, now: float) -> Row | None:
    """Return what a container's labels say of its sandbox; None where they say nothing."""
    try:
        record = json.loads(seen.labels[LABEL_RECORD])
        spec = SandboxSpec.from_json(record["spec"])
        info = SandboxInfo(
            id=seen.labels[LABEL_SANDBOX],
            key=record["key"],
            owner=record["owner"],
            spec=spec,
            host=host,
            state=State.STOPPED if seen.status == "paused" else State.READY,
            generation=int(seen.labels[LABEL_GENERATION]),
            created_at=float(record["created_at"]),
            started_at=seen.started_at,
            expires_at=now + spec.ttl_s if spec.ttl_s else 0.0,  # what was renewed nobody knows any more
            ports=seen.ports,
        )
        desired = PAUSED if seen.status == "paused" else RUNNING
        return Row(info, desired, image=record["image"], origin=record["origin"])
    except (KeyError, ValueError, TypeError):
        return None
