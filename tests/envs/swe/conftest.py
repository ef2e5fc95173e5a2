"""A real Docker daemon for the tests of software engineering; they fail where there is none, and say how to get it."""

import pytest
from tests.sandbox.conftest import base_image, docker_endpoint, manager_id

from rollcage.envs.swe import lab

__all__ = ["base_image", "docker_endpoint", "manager_id"]


def close_labs():
    """End the managers of environments that earlier tests have not closed: theirs have other folders and labels."""
    for opened in list(lab._labs.values()):
        opened.close()


@pytest.fixture
def docker(docker_endpoint, base_image, manager_id, tmp_path, monkeypatch):
    """The endpoint of a daemon, on which the test must leave nothing."""
    close_labs()
    folder = tmp_path / "state" / "envs" / "0"
    folder.mkdir(parents=True)
    (folder / "id").write_text(manager_id)
    monkeypatch.setenv("ROLLCAGE_SANDBOX", str(tmp_path / "state"))
    return docker_endpoint
