"""Looks at a cluster's nodes while a run goes on: which come and go, how busy each is, what its actors write."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from rollcage.recorder import Recorder
from rollcage.trainer.cluster.actor_logs import ActorLogs
from rollcage.trainer.cluster.demands import Node, live_nodes
from rollcage.trainer.cluster.node_look import NodeEye

LOOK_S = 2.0
"""Between two looks."""
_ANSWER_S = 10.0
"""Longest look at one node; one that does not answer is looked at again."""
_LAST_S = 5.0


class NodeWatch:
    """Looks at the nodes: events ``node_joined`` and ``node_lost``, gauges ``cluster_nodes``, and of each node
    ``node_load`` and ``node_memory`` (`rollcage.trainer.cluster.node_look.Seen`).

    Args:
        ray: the module, connected.
        recorder: is told.
        logs: of actors, which are read at each look.
    """

    def __init__(self, ray: Any, recorder: Recorder, logs: ActorLogs) -> None:
        self._ray, self._recorder, self._logs = ray, recorder, logs
        self._known: dict[str, Node] = {}
        self._names: dict[str, str] = {}
        self._eyes: dict[str, Any] = {}
        self._task: asyncio.Task[None] | None = None

    def name(self, node_id: str, address: str) -> str:
        """Return a node's name: its address, and where another node has that too, the start of its id behind it."""
        if node_id not in self._names:
            self._names[node_id] = f"{address}/{node_id[:6]}" if address in self._names.values() else address
        return self._names[node_id]

    async def start(self) -> None:
        """Tell which nodes there are, and look from now on."""
        await self._find()
        self._task = asyncio.create_task(self._watch(), name="nodes of the cluster")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._find()
            except self._ray.exceptions.RayError:
                continue  # the head does not answer: whoever has an actor there notices
            await asyncio.gather(*(self._visit(node, _ANSWER_S) for node in self._known.values()))

    async def _find(self) -> None:
        nodes = {node.id: node for node in await asyncio.to_thread(live_nodes, self._ray)}
        for lost in [known for known in self._known if known not in nodes]:
            name = self.name(lost, self._known[lost].address)
            self._recorder.event("node_lost", node=name, what=str(self._known[lost]), num_nodes=len(nodes))
            self._tell(name, load=0.0, memory=0.0)
            self._logs.lose(lost)
            self._shut(lost)
            del self._names[lost]  # the next node at this address has the name
        for joined in [node for node in nodes if node not in self._known]:
            name = self.name(joined, nodes[joined].address)
            self._recorder.event("node_joined", node=name, what=str(nodes[joined]), num_nodes=len(nodes))
        self._known = nodes
        self._recorder.gauge("cluster_nodes", len(nodes), at_s=asyncio.get_running_loop().time())

    async def _visit(self, node: Node, limit_s: float) -> None:
        asked = self._logs.wanted(node.id)
        try:
            async with asyncio.timeout(limit_s):
                seen = await _awaited(self._eye(node.id).look.remote(asked))
        except TimeoutError:
            return  # it is busy, and will tell later
        except self._ray.exceptions.RayError:  # the eye is gone, and maybe its node: the next look has another
            self._shut(node.id)
            return
        self._logs.take(node.id, asked, seen.pieces)
        self._tell(self.name(node.id, node.address), load=seen.load, memory=seen.memory)

    def _eye(self, node_id: str) -> Any:
        if node_id not in self._eyes:
            affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)
            options = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": affinity}
            self._eyes[node_id] = self._ray.remote(NodeEye).options(**options).remote()
        return self._eyes[node_id]

    def _shut(self, node_id: str) -> None:
        eye = self._eyes.pop(node_id, None)
        if eye is not None and self._ray.is_initialized():
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(eye)

    def _tell(self, name: str, *, load: float, memory: float) -> None:
        now_s = asyncio.get_running_loop().time()
        self._recorder.gauge("node_load", load, at_s=now_s, node=name)
        self._recorder.gauge("node_memory", memory, at_s=now_s, node=name)

    async def close(self) -> None:
        """Bring what actors wrote last, and stop; idempotent."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        if self._ray.is_initialized():
            left = [node for node in self._known.values() if self._logs.wanted(node.id)]
            await asyncio.gather(*(self._visit(node, _LAST_S) for node in left))
        for node_id in [*self._eyes]:
            self._shut(node_id)


async def _awaited(reference: Any) -> Any:
    return await reference
