"""Where an actor of a Ray cluster runs, so that people find its node and its log."""

from __future__ import annotations

import os
from typing import NamedTuple


class Whereabouts(NamedTuple):
    """Where an actor runs.

    Attributes:
        node: address of its node.
        pid: of its process there.
        log: the file there that its messages (stderr) go to; "" where that is no file.
        out: the file that its other output (stdout) goes to; "" where that is no file.
        node_id: Ray's name of the node.
    """

    node: str
    pid: int
    log: str
    out: str = ""
    node_id: str = ""

    def __str__(self) -> str:
        return f"on {self.node}, process {self.pid}, log {self.log or 'unknown'}"


def whereabouts() -> Whereabouts:
    """Return where the actor runs that calls this."""
    import ray

    context = ray.get_runtime_context()
    return Whereabouts(str(ray.util.get_node_ip_address()), os.getpid(), _file(2), _file(1), context.get_node_id())


def _file(descriptor: int) -> str:
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # not Linux
        return ""
    return path if os.path.isfile(path) else ""
