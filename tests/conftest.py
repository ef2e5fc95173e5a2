"""Fixtures for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import ray_cluster

LONGEST = (
    "trainer/test_train_swe.py",
    "trainer/test_train.py",
    "trainer/test_train_alfworld.py",
    "trainer/test_train_vllm.py",
    "trainer/cluster/test_ray_train.py",
    "trainer/cluster/test_ray_runs.py",
    "envs/test_checker.py",
    "benchmarks/test_soak.py",
    "benchmarks/throughput/test_asynchrony.py",
    "sandbox/commands/test_help_examples.py",
)
"""Files with tests of a minute."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest: one that came last would keep one process at work while the others have none left."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONGEST))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What tests keep for later goes into a folder of their own, also where they start processes."""
    folder, before = tmp_path_factory.mktemp("cache"), os.environ.get("ROLLCAGE_CACHE")
    os.environ["ROLLCAGE_CACHE"] = str(folder)
    yield folder
    os.environ.pop("ROLLCAGE_CACHE")
    if before is not None:
        os.environ["ROLLCAGE_CACHE"] = before


@pytest.fixture(scope="session")
def shared_data() -> Path | None:
    """The folder of real data sets beside the repository, or None: then tests use small data of their own."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[ray_cluster.RayNodes]:
    """A Ray cluster, the same for all tests of this process."""
    yield from ray_cluster.running()
