"""Scenarios on a real daemon."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.sandbox.drivers.docker_rig import Rig, run_on

Scenario = Callable[[Rig], Coroutine[Any, Any, None]]


@pytest.fixture
def on_docker(docker_endpoint: str, manager_id: str, base_image: str, bare_image: str) -> Callable[[Scenario], None]:
    """Run a scenario with a rig; it fails where anything is left."""
    return lambda scenario: run_on(docker_endpoint, manager_id, scenario)
