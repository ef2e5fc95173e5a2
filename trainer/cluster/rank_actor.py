"""What runs on a node for one process of the learner: the same as on one machine, asked from elsewhere."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from typing import Any

from rollcage.envs.placements.ray_whereabouts import Whereabouts, whereabouts
from rollcage.errors import UserError

_ADDRESS_OF_INTERFACE = 0x8915
"""Linux's SIOCGIFADDR."""


class RankActor:
    """One rank, or critics or attention model apart from the ranks.

    Args:
        role: see `rollcage.trainer.learner.roles`.
        rank: its number.
        world_size: how many there are.
        num_threads: CPU threads for its arithmetic.
    """

    def __init__(self, role: str, rank: int, world_size: int, num_threads: int) -> None:
        os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(world_size), OMP_NUM_THREADS=str(num_threads))
        self._role = role
        self._rank: Any = None

    def address(self) -> str:
        """Return this node's address, at which the other ranks find this one."""
        import ray

        return str(ray.util.get_node_ip_address())

    def prepare(self, master: str) -> Whereabouts:
        """Import what it needs, and say where rank 0 of its role is; returns where this one is."""
        os.environ["MASTER_ADDR"] = master
        if interface := interface_of(self.address()):
            os.environ["GLOO_SOCKET_IFNAME"] = interface
        from rollcage.trainer.learner.roles import serve
        from rollcage.trainer.learner.shared_weights import open_memory

        self._rank = serve(self._role, memory=open_memory())
        return whereabouts()

    def call(self, method: str, *arguments: Any) -> tuple[str, Any]:
        """Let the rank do something: ("ok", what it returns), or ("refused", why)."""
        try:
            return "ok", getattr(self._rank, method)(*arguments)
        except UserError as error:
            return "refused", str(error)

    def put(self) -> Any:
        """Put what was published last into the store of this node; see `StoredWeights`."""
        from rollcage.trainer.cluster.weights import put

        return put(self._rank.published)

    def take(self, stored: Any) -> None:
        """Let the attention model take the weights that some node has put into the store."""
        import ray

        from rollcage.trainer.cluster.weights import unpack

        self._rank.take(unpack(ray.get(stored.reference), stored.layout.entries))


def interface_of(address: str) -> str:
    """Return the name of the network interface with this IPv4 address; "" where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking, _ADDRESS_OF_INTERFACE, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has no such address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""
