"""Where a new life begins: on the host of the former one, once that is gone, or on another where the host is dead."""

from __future__ import annotations

import asyncio

from rollcage.sandbox.errors import HostUnavailable, SandboxError
from rollcage.sandbox.manager.box import Box, container_name
from rollcage.sandbox.manager.fleet import Fleet
from rollcage.sandbox.manager.hosts import Host


class Moves:
    """Finds the place of a sandbox's new life.

    Where that is another host the former life may go on on the one that is silent, where nobody can reach it: calls are
    fenced to the new one, and the former is removed as soon as its host answers.

    Args:
        fleet: what the rooms share.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def move(self, box: Box) -> Host | None:
        """Give a RECOVERING sandbox, which is locked, a place on another host, if its own has been silent for too long.

        Returns:
            The new host; None where it is too early to go.

        Raises:
            HostUnavailable, Overloaded, DiskPressure: no other host can take it now.
        """
        fleet, info = self._fleet, box.info
        silent_s, after_s = fleet.silent_s(info.host), fleet.settings.move_after_s
        if not after_s or silent_s < after_s:
            return None
        why = f"host {info.host!r} has not answered for {silent_s:.0f} s"
        names = await self._able(box, why)
        deadline = asyncio.get_running_loop().time() + fleet.settings.call_timeout_s
        place = await fleet.admission.admit(info.spec, deadline=deadline, owner=info.owner, only=names)
        former, box.place = box.place, place
        if (host := fleet.hosts.get(info.host)) is not None:
            lives = [container_name(info.id, generation) for generation in (info.generation - 1, info.generation)]
            host.leftovers |= {lives[0]: former, lives[1]: None}
        told = {"from": info.host, "to": place.host, "why": why}
        changes = {"host": place.host, "generation": info.generation + 1, "message": f"{why}: moved to {place.host!r}"}
        fleet.move(box, "moved", told, **changes)
        return fleet.hosts[place.host]

    async def clear(self, box: Box) -> Host:
        """Return the present host of a RECOVERING sandbox, once its former life is gone from there: never two at once.

        Raises:
            HostUnavailable: it cannot be removed yet.
        """
        host, limit_s = self._fleet.host(box), self._fleet.settings.remove_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await host.driver.remove(container_name(box.info.id, box.info.generation - 1))
        except (SandboxError, TimeoutError) as error:
            why = str(error) or f"no answer within {limit_s:g} s"
            raise HostUnavailable(f"its former life cannot be removed yet: {why}") from None
        return host

    async def _able(self, box: Box, why: str) -> list[str]:
        """Return the other hosts that are open and have the image; raises HostUnavailable where there are none."""
        others = [host for host in self._fleet.hosts.values() if host.name != box.info.host]
        able = [host for host in others if host.condition == "open"]
        if not able:
            conditions = ", ".join(f"{host.name} is {host.condition}" for host in others) or "there is no other host"
            raise HostUnavailable(f"{why}, and no other can take it: {conditions}")
        if not box.row.image:
            return [host.name for host in able]
        with_image = []
        for host in able:
            try:
                if box.row.image in await host.driver.list_images(self._fleet.store.id):
                    with_image.append(host.name)
            except SandboxError:
                continue
        if not with_image:
            raise HostUnavailable(
                f"{why}, and its snapshot {box.row.image} lies on no other: it waits for that host (delete it, or use "
                "restart policy 'restart', where losing what it wrote is better than waiting)"
            )
        return with_image
