"""Snapshots: taken, found, and removed when nobody lives on them and newer ones are enough."""

from __future__ import annotations

import secrets

from rollcage.sandbox.drivers.base import LABEL_MANAGER, LABEL_SANDBOX
from rollcage.sandbox.errors import SandboxError, SandboxNotFound
from rollcage.sandbox.manager.box import LIVE, Box
from rollcage.sandbox.manager.fleet import Fleet
from rollcage.sandbox.manager.hosts import Host
from rollcage.sandbox.manager.retention import expired_snapshots
from rollcage.sandbox.manager.store import DELETED
from rollcage.sandbox.types import Snapshot

REPOSITORY = "rollcage-snapshot"


class Snapshots:
    """Takes and keeps snapshots.

    Args:
        fleet: what the rooms share.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._being_made: set[str] = set()

    async def take(self, box: Box) -> Snapshot:
        """Save the file system of a sandbox; raises SandboxUnavailable, HostUnavailable."""
        fleet = self._fleet
        async with box.lock:
            if box.info.state not in LIVE or box.row.desired == DELETED:
                raise box.unavailable()
            host, snapshot_id = fleet.host(box), secrets.token_hex(6)
            image = f"{REPOSITORY}:{snapshot_id}"
            labels = {LABEL_MANAGER: fleet.store.id, LABEL_SANDBOX: box.info.id}
            self._being_made.add(image)
            try:
                async with host.hands:
                    await host.driver.commit(box.name, image, labels)
                times = [each.time for each in fleet.store.snapshots()]
                time = max(
                    [fleet.clock(), *(last + 1e-6 for last in times[-1:])]
                )  # no two at once: the last is the last
                snapshot = Snapshot(snapshot_id, box.info.id, image, host.name, time)
                fleet.store.add_snapshot(snapshot)
            finally:
                self._being_made.discard(image)
        await self.prune()
        return snapshot

    def find(self, box: Box, snapshot_id: str) -> Snapshot:
        """Return a snapshot of a sandbox, the last one for ""; raises SandboxNotFound."""
        mine = [each for each in self._fleet.store.snapshots() if each.sandbox_id == box.info.id]
        found = [each for each in mine if snapshot_id in ("", each.id)]
        if not found:
            which = f"snapshot {snapshot_id!r}" if snapshot_id else "snapshot"
            raise SandboxNotFound(f"sandbox {box.info.id} has no {which}")
        return found[-1]

    async def prune(self) -> list[str]:
        """Remove the snapshots that are too many, and those of sandboxes that are gone; returns their images."""
        store, settings = self._fleet.store, self._fleet.settings
        kept = store.snapshots()
        in_use = {image for box in self._fleet.boxes.values() for image in (box.row.image, box.row.origin)}
        needed = {each.id for each in kept if each.image in in_use}
        latest = {each.sandbox_id: each.id for each in kept if each.sandbox_id in self._fleet.boxes}
        expired = expired_snapshots(
            kept,
            needed | set(latest.values()),
            max_per_sandbox=settings.max_snapshots_per_sandbox,
            max_snapshots=settings.max_snapshots,
        )
        ownerless = [each for each in kept if each.sandbox_id not in self._fleet.boxes and each.id not in needed]
        going = {each.id: each for each in (*expired, *ownerless)}
        for snapshot in going.values():  # first forgotten, then removed: what is left of it is found by `sweep`
            store.remove_snapshot(snapshot.id)
        for snapshot in going.values():
            if (host := self._fleet.hosts.get(snapshot.host)) is not None:
                try:
                    async with host.hands:
                        await host.driver.remove_image(snapshot.image)
                except SandboxError:
                    pass
        return [each.image for each in going.values()]

    async def sweep(self, host: Host) -> list[str]:
        """Remove a host's images that are no snapshot that is kept, and forget snapshots without an image.

        Raises:
            HostUnavailable, DaemonUnreachable, DaemonForbidden: it does not answer.
        """
        before = {each.image: each.id for each in self._fleet.store.snapshots() if each.host == host.name}
        images = await host.driver.list_images(self._fleet.store.id)
        kept = {each.image for each in self._fleet.store.snapshots() if each.host == host.name} | self._being_made
        kept |= {image for box in self._fleet.boxes.values() for image in (box.row.image, box.row.origin)}
        orphans = [image for image in images if image not in kept]
        for image in orphans:
            async with host.hands:
                await host.driver.remove_image(image)
            self._fleet.meter.orphan("image")
        for image in before.keys() - set(images):
            self._fleet.store.remove_snapshot(before[image])
        return orphans
