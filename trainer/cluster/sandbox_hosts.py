"""The sandbox hosts of a cluster: every node with a Docker endpoint is a host of the run's one manager."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rollcage.envs.placements import EnvConfig, Placement, SandboxPlacement, make_placement
from rollcage.envs.registration import class_metadata
from rollcage.errors import UserError
from rollcage.recorder import Recorder
from rollcage.sandbox.base import Sandboxes
from rollcage.trainer.cluster.demands import Node

DOCKER_LABEL = "rollcage-docker"
"""``ray start --labels rollcage-docker=2375``: a Docker daemon, or a proxy in front of one, answers at this port of the
node's address. Whoever reaches it is root on the node: no other network than the cluster's own may."""


def docker_endpoints(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Return the nodes' Docker endpoints, each once.

    Raises:
        UserError: a label's value is no port.
    """
    found = []
    for node in nodes:
        if port := node.labels.get(DOCKER_LABEL):
            if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
                raise UserError(
                    f"ray: {node.address} has the label {DOCKER_LABEL}={port}: give the port of a Docker endpoint."
                )
            found.append(f"tcp://{node.address}:{port}")
    return tuple(sorted(set(found)))


class SandboxHosts:
    """The run's manager, opened at the first need.

    Args:
        folder: of the manager's state.
        recorder: is told the metrics.

    Attributes:
        endpoints: of the hosts; to be set before the first need.
    """

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self.endpoints: tuple[str, ...] = ()
        self._folder, self._recorder = folder, recorder
        self._manager: Sandboxes | None = None

    async def place(self, env: EnvConfig, *, num_workers: int | None, restart: str) -> Placement:
        """Return a placement in sandboxes on these hosts.

        An environment with ``metadata["own_sandboxes"]`` gets them as its argument ``endpoints``, unless it has one.

        Raises:
            UserError: see `make_placement` and `rollcage.sandbox.opening.open_manager`.
        """
        if class_metadata(env.env_id).get("own_sandboxes"):
            env = replace(env, kwargs={"endpoints": list(self.endpoints), **env.kwargs})
            return make_placement("sandbox", env, num_workers=num_workers, restart=restart)
        return SandboxPlacement(env, num_workers=num_workers, restart=restart, sandboxes=await self.manager())

    async def manager(self) -> Sandboxes:
        """Return the manager, the same each time; it belongs to this.

        Raises:
            UserError: see `rollcage.sandbox.opening.open_manager`.
        """
        if self._manager is None:
            from rollcage.sandbox.opening import open_manager

            self._manager = await open_manager(self._folder, self.endpoints, recorder=self._recorder)
        return self._manager

    async def close(self) -> None:
        """Close the manager; idempotent."""
        manager, self._manager = self._manager, None
        if manager is not None:
            await manager.close()
