"""Where an actor of a Ray cluster runs, so that people find its node and its log."""

from __future__ import annotations

import os
from typing import NamedTuple


class Whereabouts(NamedTuple):
    """Where an actor runs.

    Attributes:
        node: address of its node.
        pid: of its process there.
        log: the file there that its output goes to; "" where that is no file.
    """

    node: str
    pid: int
    log: str

    def __str__(self) -> str:
        return f"on {self.node}, process {self.pid}, log {self.log or 'unknown'}"


def whereabouts() -> Whereabouts:
    """Return where the actor runs that calls this."""
    import ray

    try:
        log = os.readlink("/proc/self/fd/2")
    except OSError:  # not Linux
        log = ""
    return Whereabouts(str(ray.util.get_node_ip_address()), os.getpid(), log if os.path.isfile(log) else "")
