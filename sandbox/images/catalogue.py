"""Which images a host has: asked, pulled, named and removed."""

from __future__ import annotations

from rollcage.sandbox.drivers.docker_api import Engine
from rollcage.sandbox.drivers.docker_config import LABEL_RECIPE
from rollcage.sandbox.errors import HostUnavailable
from rollcage.sandbox.images.base import pull
from rollcage.sandbox.images.running import Progress, silent

_UNREACHABLE = ("no such host", "dial tcp", "timeout", "refused", "Client.Timeout")


class Catalogue:
    """The images of one host.

    Args:
        endpoint: of its Docker daemon.

    Raises:
        DaemonUnreachable, DaemonForbidden, HostUnavailable: of each call.
    """

    def __init__(self, endpoint: str) -> None:
        self.engine = Engine(endpoint)

    async def __aenter__(self) -> Catalogue:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.engine.close()

    async def has(self, image: str) -> bool:
        """Return whether there is an image of this name."""
        async with self.engine.call(f"look for {image}") as docker:
            return bool(await docker.images.list(filters={"reference": [image]}))

    async def id_of(self, image: str) -> str:
        """Return the id of an image that is there."""
        async with self.engine.call(f"look for {image}") as docker:
            return str((await docker.images.inspect(image))["Id"])

    async def made_by(self, recipe: str) -> list[str]:
        """Return the names of the images that were made by a recipe."""
        async with self.engine.call("list images") as docker:
            rows = await docker.images.list(filters={"label": [f"{LABEL_RECIPE}={recipe}"]})
        return [tag for row in rows for tag in row.get("RepoTags") or [] if tag != "<none>:<none>"]

    async def labelled(self, label: str) -> list[tuple[str, int]]:
        """Return name and bytes of the images with a label."""
        async with self.engine.call("list images") as docker:
            rows = await docker.images.list(filters={"label": [label]})
        found = [(tag, row["Size"]) for row in rows for tag in row.get("RepoTags") or [] if tag != "<none>:<none>"]
        return sorted(found)

    async def name(self, image: str, name: str) -> None:
        """Give an image a further name."""
        async with self.engine.call(f"name {image}") as docker:
            await docker.images.tag(image, name)

    async def pull(self, image: str, *, progress: Progress = silent, timeout_s: float = 3600.0) -> tuple[str, bool]:
        """Pull an image; returns why it could not be had ("": it is there now), and whether its registry answered."""
        why = await pull(self.engine, image, progress, timeout_s)
        return why, not any(words in why for words in _UNREACHABLE)

    async def remove(self, image: str) -> bool:
        """Remove an image that no container uses; returns whether it is gone."""
        try:
            async with self.engine.call(f"remove {image}", timeout_s=120.0) as docker:
                await docker.images.delete(image)
        except HostUnavailable:
            return not await self.has(image)
        return True
