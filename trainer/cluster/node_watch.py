"""Tells the recorder which nodes a cluster has, and which of them come and go while a run goes on."""

from __future__ import annotations

import asyncio
from typing import Any

from rollcage.recorder import Recorder
from rollcage.trainer.cluster.demands import Node, live_nodes

LOOK_S = 5.0
"""Between two looks."""


class NodeWatch:
    """Looks at the nodes from time to time: events ``node_joined`` and ``node_lost``, gauge ``cluster_nodes``.

    Args:
        ray: the module, connected.
        recorder: is told.
    """

    def __init__(self, ray: Any, recorder: Recorder) -> None:
        self._ray, self._recorder = ray, recorder
        self._known: dict[str, Node] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Tell which nodes there are, and look from now on."""
        await self._look()
        self._task = asyncio.create_task(self._watch(), name="nodes of the cluster")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look()
            except self._ray.exceptions.RayError:
                pass  # the head does not answer: whoever has an actor there notices

    async def _look(self) -> None:
        nodes = {node.id: node for node in await asyncio.to_thread(live_nodes, self._ray)}
        for joined in nodes.keys() - self._known.keys():
            self._recorder.event("node_joined", node=str(nodes[joined]), num_nodes=len(nodes))
        for lost in self._known.keys() - nodes.keys():
            self._recorder.event("node_lost", node=str(self._known[lost]), num_nodes=len(nodes))
        self._known = nodes
        now_s = asyncio.get_running_loop().time()
        self._recorder.gauge("cluster_nodes", len(nodes), at_s=now_s)

    async def close(self) -> None:
        """Stop; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
