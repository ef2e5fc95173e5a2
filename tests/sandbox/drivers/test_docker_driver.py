"""The Docker driver keeps what every driver promises, with and without Python inside."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from tests.sandbox.drivers.driver_contract import CONTRACT, GUEST_CONTRACT, Host, Promise

from rollcage.sandbox.drivers.docker import DockerDriver
from rollcage.sandbox.types import SandboxSpec


@pytest.fixture
def host(docker_endpoint: str, base_image: str, manager_id: str, tmp_path: Path) -> Host:
    """The real engine."""
    return Host(lambda: DockerDriver(docker_endpoint), SandboxSpec(image=base_image), manager_id, tmp_path)


@pytest.mark.parametrize("promise", CONTRACT + GUEST_CONTRACT, ids=lambda promise: promise.__name__)
def test_the_docker_driver_keeps(promise: Promise, host: Host) -> None:
    asyncio.run(promise(host))  # type: ignore[arg-type]


@pytest.mark.parametrize("promise", GUEST_CONTRACT, ids=lambda promise: promise.__name__)
def test_the_docker_driver_keeps_without_python(promise: Promise, host: Host, bare_image: str) -> None:
    asyncio.run(promise(replace(host, spec=replace(host.spec, image=bare_image))))  # type: ignore[arg-type]


def test_the_docker_driver_keeps_gated(host: Host) -> None:
    gated = replace(host, spec=replace(host.spec, ports=(8000,)))
    for promise in CONTRACT[:5]:
        asyncio.run(promise(replace(gated, manager=host.manager)))  # type: ignore[arg-type]
