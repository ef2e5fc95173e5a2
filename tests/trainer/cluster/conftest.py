"""A real Docker daemon, as the sandbox manager's own tests have it."""

from __future__ import annotations

from tests.sandbox.conftest import bare_image, docker_endpoint

__all__ = ["bare_image", "docker_endpoint"]
