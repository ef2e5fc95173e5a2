"""A real daemon, and the environments' image, as the tests of placement `sandbox` have them."""

from tests.envs.placements.conftest import base_image, docker_endpoint, env_image, manager_id

__all__ = ["base_image", "docker_endpoint", "env_image", "manager_id"]
