"""A Ray cluster on this machine for a measurement: a head, and nodes that are added one by one."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from rollcage.envs.placements.ray_connection import connect, disconnect

_STORE_BYTES = 600 << 20


class Raylets:
    """The head, to which this process is connected inside a ``with`` block.

    Args:
        num_cpus: of the head, as Ray shall count them: more than there are may be said.

    Attributes:
        address: of the head.
    """

    def __init__(self, num_cpus: float) -> None:
        self._num_cpus = num_cpus
        self._cluster: Any = None
        self.address = ""

    def __enter__(self) -> Raylets:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args=self._arguments(self._num_cpus, "head"))
        self.address = self._cluster.address
        connect(self.address)
        return self

    def add(self, num_cpus: float, kind: str) -> None:
        """Add a node with the label ``kind``."""
        self._cluster.add_node(**self._arguments(num_cpus, kind))

    def _arguments(self, num_cpus: float, kind: str) -> dict[str, Any]:
        return {
            "num_cpus": num_cpus,
            "labels": {"kind": kind},
            "object_store_memory": _STORE_BYTES,
            "include_dashboard": False,
        }

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        disconnect()
        self._cluster.shutdown()
