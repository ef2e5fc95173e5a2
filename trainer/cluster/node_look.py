"""What runs on a node at each look at it: how busy it is, and what actors have written there since the last look."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

MOST_BYTES = 128 << 10
"""Of one file at one look: who writes faster has its newest lines shown, and is told of those left out."""
_MARKS = (b":job_id:", b":actor_name:", b":task_name:")
"""Lines that Ray writes into its workers' files for itself."""


class Piece(NamedTuple):
    """The next part of a file.

    Attributes:
        path: of the file.
        end: where the part ends in it, in bytes.
        data: whole lines, where there is one.
        num_skipped_bytes: before it, which nobody reads.
    """

    path: str
    end: int
    data: bytes
    num_skipped_bytes: int


class Seen(NamedTuple):
    """What a look finds.

    Attributes:
        load: processes that run or want to, a core of the node.
        memory: share of the node's memory that is in use, 0 to 1.
        pieces: of the files that were asked for, where they have grown.
    """

    load: float
    memory: float
    pieces: list[Piece]


class NodeEye:
    """An actor of a node: a task would need a new process at each look, since Ray ends those that wait for work."""

    def look(self, files: Iterable[tuple[str, int]]) -> Seen:
        """Look at this node.

        Args:
            files: paths, and up to where each was read before, in bytes.
        """
        pieces = [piece for path, start in files if (piece := read_on(path, start)) is not None]
        return Seen(os.getloadavg()[0] / (os.cpu_count() or 1), _memory_in_use(), pieces)


def read_on(path: str, start: int) -> Piece | None:
    """Return what was written to a file after byte ``start``; None where that is nothing, or there is no such file."""
    try:
        with open(path, "rb") as file:
            first = max(start, file.seek(0, os.SEEK_END) - MOST_BYTES)
            file.seek(first)
            data = file.read(MOST_BYTES)
    except OSError:
        return None
    if not data:
        return None
    data = data[: data.rfind(b"\n") + 1] or data  # the rest of a line comes with the next look
    lines = [line for line in data.splitlines(keepends=True) if not line.startswith(_MARKS)]
    return Piece(path, first + len(data), b"".join(lines), first - start)


def _memory_in_use() -> float:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = {name: float(rest.split()[0]) for name, _, rest in (line.partition(":") for line in file)}
    except OSError:  # not Linux
        return 0.0
    return 1.0 - found["MemAvailable"] / found["MemTotal"]
