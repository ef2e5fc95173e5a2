"""The process that is killed: a manager behind the proxy, served on a unix socket. ``python -m`` FOLDER ENDPOINT.

It ends when its standard input does, so that it outlives no harness.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rollcage.sandbox.base import Sandboxes
from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.manager.fleet import Settings
from rollcage.sandbox.manager.manager import Manager
from rollcage.sandbox.service.server import Listen, serve

SOCKET = "socket"
SETTINGS = Settings(
    reconcile_s=1.5,
    sweep_s=0.5,
    images_s=5.0,
    status_s=2.0,
    call_timeout_s=5.0,
    slow_s=2.0,
    connect_timeout_s=8.0,
    remove_timeout_s=10.0,
    operation_timeout_s=40.0,
    grace_s=3.0,
    backoff_s=0.3,
    max_backoff_s=3.0,
    failed_ttl_s=60.0,
    open_s=3.0,
    close_s=5.0,
)
"""Less patient than by default, such that a daemon that hangs costs seconds; what is promised is the same."""


async def keep(folder: Path, endpoint: str) -> None:
    """Manage and serve until SIGTERM, or the end of standard input."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(sys.stdin)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(sys.stdin, ended)

    async def opened() -> Sandboxes:
        manager = Manager({"chaos": DockerDriver(endpoint, call_timeout_s=5.0, slow_timeout_s=15.0)}, folder,
                          settings=SETTINGS)  # fmt: skip
        await manager.open()
        return manager

    await serve(opened, folder, Listen(unix_socket=folder / SOCKET), grace_s=3.0)


def main(argv: Sequence[str]) -> None:
    """Run it."""
    folder, endpoint = argv
    asyncio.run(keep(Path(folder), endpoint))


if __name__ == "__main__":
    main(sys.argv[1:])
