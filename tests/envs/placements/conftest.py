"""The environments' image and a manager on a real daemon, as the sandbox manager's own tests have them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.sandbox import docker_daemons
from tests.sandbox.conftest import base_image, docker_endpoint, manager_id

from rollcage.sandbox.images.env import build_env

__all__ = ["base_image", "docker_endpoint", "manager_id"]


ALFWORLD = Path(__file__).parents[3] / "envs" / "alfworld" / "requirements.txt"


@pytest.fixture(scope="session")
def env_image(docker_endpoint: str, base_image: str, shared_data: Path | None) -> str:
    """The image with Rollcage in it, made anew (half a minute) where the environments have changed."""
    data = [] if shared_data is None else [shared_data / "alfworld"]
    with docker_daemons.machine_lock():
        return asyncio.run(build_env(docker_endpoint, extras=["math"], requirements=[ALFWORLD], data=data))
