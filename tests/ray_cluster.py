"""A real Ray cluster of several nodes on this machine, one for all tests of a process: tests/conftest.py."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_NODE = {
    "num_cpus": 1,
    "num_gpus": 1,
    "object_store_memory": 100 << 20,
    # processes that take seconds to start, and whose work nobody wants here
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,
}
_HEAD = {
    **_NODE,
    # a node that refuses connections has gone after two seconds, not fifteen
    "_system_config": {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500},
}


class RayNodes:
    """A head with the label kind=head, and a second node; one CPU and one GPU each, as far as Ray knows.

    Tests may add nodes, and kill those.

    Attributes:
        address: of the head.
        docker_ports: sockets of the ports at which the two say that their Docker daemons answer; a test may listen.
    """

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self.docker_ports = [socket.socket() for _ in range(2)]
        for port in self.docker_ports:
            port.bind((ray.util.get_node_ip_address(), 0))
        first, second = ({"rollcage-docker": str(port.getsockname()[1])} for port in self.docker_ports)
        self._cluster = Cluster(initialize_head=True, head_node_args={**_HEAD, "labels": {"kind": "head", **first}})
        self.address: str = self._cluster.address
        self.add(**second)

    def add(self, **labels: str) -> Any:
        """Start a node; from the main thread only."""
        return self._cluster.add_node(**_NODE, labels=labels)

    def kill(self, node: Any) -> None:
        """SIGKILL for the node's raylet and its workers at once: of themselves these would go on for some seconds."""
        import psutil

        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        workers = raylet.children(recursive=True)
        raylet.suspend()  # so that it starts no more
        for worker in workers:
            with suppress(psutil.NoSuchProcess):
                worker.kill()
        self._cluster.remove_node(node, allow_graceful=False)

    def actors(self, name: str) -> list[int]:
        """Return the processes of actors of the class ``name``."""
        import psutil

        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                found += [process.pid] if process.cmdline()[0].startswith(f"ray::{name}") else []
            except (psutil.NoSuchProcess, IndexError):
                pass
        return found

    def close(self) -> None:
        self._cluster.shutdown()
        for port in self.docker_ports:
            port.close()


def running() -> Iterator[RayNodes]:
    """The cluster, with this process connected to it."""
    from rollcage.envs.placements.ray_connection import connect, disconnect

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    nodes = RayNodes()
    try:
        connect(nodes.address)
        yield nodes
    finally:
        disconnect()
        nodes.close()
