"""A manager with a bug, as the fault harness runs it: ``planted.py BUG FOLDER ENDPOINT``."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from rollcage.sandbox.chaos import kept
from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.manager.creations import Creations
from rollcage.sandbox.manager.handle import SandboxHandle
from rollcage.sandbox.manager.lives import Lives


async def forget_to_remove(self: DockerDriver, name: str) -> None:
    """In place of `DockerDriver.remove`: the container stays."""


def never_known(self: Creations, spec: Any, key: str) -> tuple[None, None]:
    """In place of `Creations._known`: every caller of a key gets a sandbox of his own."""
    return None, None


async def hang(self: SandboxHandle, *arguments: Any, **options: Any) -> None:
    """In place of `SandboxHandle.exec`: no deadline holds."""
    await asyncio.sleep(3600)


def lose_files(self: Lives, box: Any) -> str:
    """In place of `Lives._last_image`: a new life begins without what was saved."""
    return ""


def plant(bug: str) -> None:
    """Replace what works."""
    match bug:
        case "leaks containers":
            DockerDriver.remove = forget_to_remove  # type: ignore[method-assign]
        case "creates twice":
            Creations._known = never_known  # type: ignore[method-assign]
        case "ignores deadlines":
            SandboxHandle.exec = hang  # type: ignore[method-assign,assignment]
        case "loses checkpoints":
            Lives._last_image = lose_files  # type: ignore[method-assign]
        case _:
            raise ValueError(bug)


if __name__ == "__main__":
    plant(sys.argv[1])
    kept.main(sys.argv[2:])
