"""A real Docker daemon for the tests of software engineering; they fail where there is none, and say how to get it."""

import pytest
from tests.sandbox.conftest import base_image, docker_endpoint, manager_id

__all__ = ["base_image", "docker_endpoint", "manager_id"]


@pytest.fixture
def docker(docker_endpoint, base_image, manager_id, tmp_path, monkeypatch):
    """The endpoint of a daemon, on which the test must leave nothing."""
    folder = tmp_path / "state" / "envs" / "0"
    folder.mkdir(parents=True)
    (folder / "id").write_text(manager_id)
    monkeypatch.setenv("ROLLCAGE_SANDBOX", str(tmp_path / "state"))
    return docker_endpoint
