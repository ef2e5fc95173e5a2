"""What the tests of the Docker driver share: a driver on a real daemon, which takes away what a test has made."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from rollcage.sandbox.drivers.base import LABEL_MANAGER, LABEL_SANDBOX, Container
from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.guest.base import Guest
from rollcage.sandbox.types import ExecRequest, ExecResult, SandboxSpec


@dataclass
class Box:
    """A running container and the way into it."""

    name: str
    spec: SandboxSpec
    guest: Guest

    async def sh(self, command: str | tuple[str, ...], timeout_s: float = 20.0, **options: Any) -> ExecResult:
        """Run a command inside."""
        return await self.guest.exec(ExecRequest(command, timeout_s=timeout_s, **options))

    async def python(self, source: str, *arguments: str, timeout_s: float = 20.0) -> ExecResult:
        """Run a Python program inside."""
        return await self.sh(("python3", "-c", source, *arguments), timeout_s)


@dataclass
class Rig:
    """A driver and the label of all that is made through it."""

    driver: DockerDriver
    manager: str
    boxes: list[Box] = field(default_factory=list)

    def container(self, spec: SandboxSpec | None = None, name: str = "", image: str = "") -> Container:
        """Describe a container."""
        name = name or f"{self.manager}-{uuid.uuid4().hex[:6]}"
        return Container(name, spec or SandboxSpec(), image, {LABEL_MANAGER: self.manager, LABEL_SANDBOX: name})

    async def start(self, spec: SandboxSpec | None = None, name: str = "", image: str = "") -> Box:
        """Create a container and connect to it."""
        container = self.container(spec, name, image)
        await self.driver.create(container)
        box = Box(container.name, container.spec, await self.driver.connect(container.name, container.spec))
        self.boxes.append(box)
        return box

    async def remove_all(self) -> None:
        """Take away everything."""
        for box in self.boxes:
            await box.guest.close()
        names = [row.name for row in await self.driver.list_containers(self.manager)]
        await asyncio.gather(*(self.driver.remove(name) for name in names))
        for image in await self.driver.list_images(self.manager):
            await self.driver.remove_image(image)


@asynccontextmanager
async def open_rig(endpoint: str, manager: str, **options: Any) -> AsyncIterator[Rig]:
    """A rig on a daemon; at the end all of it is removed."""
    rig = Rig(DockerDriver(endpoint, **options), manager)
    try:
        yield rig
    finally:
        try:
            await rig.remove_all()
        finally:
            await rig.driver.close()


def run_on(endpoint: str, manager: str, scenario: Callable[[Rig], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a scenario with a rig, and see that no task is left."""

    async def main() -> None:
        async with open_rig(endpoint, manager, **options) as rig:
            await scenario(rig)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks that nobody ended: {left}"

    asyncio.run(main())
