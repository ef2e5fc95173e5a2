"""A real Ray cluster of several nodes on this machine, one for all tests of a process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest

from rollcage.envs.placements.ray_connection import connect, disconnect

_NODE = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}


class RayNodes:
    """A head and two more nodes; tests may add nodes, and kill those.

    Attributes:
        address: of the head.
    """

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args=_NODE)
        self.address: str = self._cluster.address
        self.add()

    def add(self, **resources: float) -> Any:
        return self._cluster.add_node(**_NODE, resources=resources)

    def kill(self, node: Any) -> None:
        """SIGKILL for the node's raylet and its workers at once: of themselves these would go on for some seconds."""
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        workers = raylet.children(recursive=True)
        raylet.suspend()  # so that it starts no more
        for worker in workers:
            with suppress(psutil.NoSuchProcess):
                worker.kill()
        self._cluster.remove_node(node, allow_graceful=False)

    def actors(self, name: str) -> list[int]:
        """Return the processes of actors of the class ``name``."""
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                found += [process.pid] if process.cmdline()[0].startswith(f"ray::{name}") else []
            except (psutil.NoSuchProcess, IndexError):
                pass
        return found

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="session")
def ray_nodes() -> Iterator[RayNodes]:
    """The cluster, with this process connected to it."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    nodes = RayNodes()
    try:
        connect(nodes.address)
        yield nodes
    finally:
        disconnect()
        nodes.close()
