"""Opens sandboxes for those who do not care how: the service that runs for a folder, else a manager in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rollcage.errors import require
from rollcage.recorder import LISTENING, Recorder
from rollcage.sandbox.base import Sandboxes
from rollcage.sandbox.client.address import default_folder, read_address
from rollcage.sandbox.drivers.base import Driver
from rollcage.sandbox.errors import BadSpec, ServiceUnreachable

DOCKER = "unix:///var/run/docker.sock"
PROCESS = "process:"
"""The endpoint of the driver without containers: no isolation at all, for trusted code. ``process://PATH`` keeps its
folders in PATH, else they are in the manager's folder."""


@contextmanager
def measured_by(recorder: Recorder) -> Iterator[None]:
    """Have the managers that are opened in this process meanwhile tell ``recorder`` their metrics, from any thread.

    For whoever cannot hand it to `open_manager`, since environments open managers out of sight.
    """
    LISTENING.append(recorder)
    try:
        yield
    finally:
        LISTENING.remove(recorder)


async def open_default(folder: Path | str | None = None, endpoints: Sequence[str] = ()) -> Sandboxes:
    """Return a client of the running service of ``folder``, or a manager in this process where there is none.

    Args:
        folder: the manager's state; None: this user's.
        endpoints: see `open_manager`; where there are any, no service is looked for.

    Raises:
        UserError: see `open_manager`. Unauthorized: the service does not take the token in its address file.
    """
    where = Path(folder or default_folder())
    service = None if endpoints else await find_service(where)
    return service or await open_manager(where, endpoints)


async def find_service(folder: Path) -> Sandboxes | None:
    """Return the service that runs for a folder, or None.

    Raises:
        Unauthorized: the service does not take the token in its address file.
    """
    if (service := read_address(folder)) is None:
        return None
    from rollcage.sandbox.client.client import Client

    client = Client(service.address, service.token, folder=folder)
    try:
        await client.check()
    except ServiceUnreachable:  # it was killed and left its address
        await client.close()
        return None
    except BaseException:
        await client.close()
        raise
    return client


async def open_manager(
    folder: Path | str, endpoints: Sequence[str] = (), *, recorder: Recorder | None = None
) -> Sandboxes:
    """Return a manager in this process.

    Args:
        folder: its state.
        endpoints: Docker daemons, as URL or NAME=URL; empty: the one that the ``docker`` command uses too.
        recorder: is told the metrics; None: see `measured_by`.

    Raises:
        UserError: another manager has the folder, an endpoint is none, or the Docker client is not installed.
    """
    from rollcage.sandbox.manager.manager import Manager

    recorder = recorder or (LISTENING[-1] if LISTENING else None)
    endpoints = (endpoints,) if isinstance(endpoints, str) else endpoints
    named = dict(parse_endpoint(text) for text in endpoints or (default_endpoint(),))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    manager = Manager({name: _driver(endpoint, folder) for name, endpoint in named.items()}, folder, recorder=recorder)
    try:
        await manager.open()
    except BaseException:
        await manager.close()
        raise
    return manager


def default_endpoint() -> str:
    """Return the Docker daemon that the ``docker`` command uses too: ``$DOCKER_HOST``, else the one of this machine."""
    return os.environ.get("DOCKER_HOST") or DOCKER


def parse_endpoint(text: str) -> tuple[str, str]:
    """Return name and URL of a host; raises BadSpec where it is none.

    >>> parse_endpoint("big=tcp://10.0.0.7:2375"), parse_endpoint("unix:///var/run/docker.sock")
    (('big', 'tcp://10.0.0.7:2375'), ('local', 'unix:///var/run/docker.sock'))
    """
    name, equals, url = text.partition("=")
    if not equals or ":" in name:
        name, url = "", text
    if not url.startswith(("unix://", "tcp://", "http://", "ssh://", PROCESS)):
        raise BadSpec(f"endpoint {text!r}: write [NAME=]URL: unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST.")
    return name or ("local" if url == DOCKER else url), url


def _driver(endpoint: str, folder: Path) -> Driver:
    if endpoint.startswith(PROCESS):
        from rollcage.sandbox.drivers.process import ProcessDriver

        return ProcessDriver(endpoint.removeprefix(PROCESS).removeprefix("//") or folder / "process")
    require("aiodocker", "sandbox")
    from rollcage.sandbox.drivers.docker import DockerDriver

    return DockerDriver(endpoint)
