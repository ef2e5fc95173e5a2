"""Real Docker for the sandbox manager's tests. Without Docker they fail, and say how to get it; none is skipped."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator

import pytest
from tests.sandbox import docker_daemons

from rollcage.sandbox.drivers.docker_api import Engine
from rollcage.sandbox.drivers.docker_config import of_manager
from rollcage.sandbox.images.bare import build_bare
from rollcage.sandbox.images.base import build_base


@pytest.fixture(scope="session")
def docker_endpoint() -> Iterator[str]:
    """The endpoint of a real Docker daemon."""
    try:
        daemon = docker_daemons.shared_daemon()
        endpoint = daemon.__enter__()
    except RuntimeError as error:
        pytest.fail(str(error), pytrace=False)
    try:
        yield endpoint
    finally:
        daemon.__exit__(None, None, None)


@pytest.fixture(scope="session")
def base_image(docker_endpoint: str) -> str:
    """The base image, made where it is missing (about a minute)."""
    with docker_daemons.machine_lock():
        return asyncio.run(build_base(docker_endpoint))


@pytest.fixture(scope="session")
def bare_image(docker_endpoint: str) -> str:
    """An image with busybox and no Python."""
    with docker_daemons.machine_lock():
        return asyncio.run(build_bare(docker_endpoint))


@pytest.fixture(scope="session")
def second_docker_endpoint(docker_endpoint: str, base_image: str) -> Iterator[str]:
    """The endpoint of a second real daemon, which has the base image and the bare one."""
    with docker_daemons.separate_daemon() as endpoint:
        asyncio.run(docker_daemons.copy_image(docker_endpoint, endpoint, base_image))
        asyncio.run(build_bare(endpoint))
        yield endpoint


@pytest.fixture
def manager_id(docker_endpoint: str) -> Iterator[str]:
    """A store's id for `LABEL_MANAGER`; the test fails where anything with that label is left on the daemon."""
    manager = f"test-{uuid.uuid4().hex[:12]}"
    yield manager
    left = asyncio.run(_sweep(docker_endpoint, manager))
    assert not left, f"left on the daemon (and removed now): {left}"


async def _sweep(endpoint: str, manager: str) -> list[str]:
    engine = Engine(endpoint)
    filters = {"filters": json.dumps(of_manager(manager))}
    left = []
    try:
        async with engine.call("list what is left") as docker:
            for row in await docker._query_json("containers/json", params={"all": True, **filters}):
                left.append(f"container {row['Names'][0]}")
                await docker.containers.container(row["Id"]).delete(force=True, v=True)
            for row in await docker._query_json("networks", params=filters):
                left.append(f"network {row['Name']}")
                await docker._query_json(f"networks/{row['Id']}", "DELETE")
            for row in await docker.images.list(filters=of_manager(manager)):
                left.append(f"image {row.get('RepoTags')}")
                await docker.images.delete(row["Id"], force=True)
    finally:
        await engine.close()
    return left
