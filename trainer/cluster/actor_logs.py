"""The logs of a run's actors, brought into its run folder, where they outlive the actors and their nodes.

Ray keeps what an actor writes in a file of its node, where it stays when the actor dies. At each look at the node what
is new there is appended to RUN/logs/NAME.log: so the last words before a death come too, unless the node goes as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rollcage.envs.placements.ray_whereabouts import Whereabouts
from rollcage.trainer.cluster.node_look import Piece

MOST_BYTES = 4 << 20
"""Of one log; then it becomes NAME.log.1, in place of the one before, and another one is begun."""


@dataclass(slots=True)
class _Source:
    log: str
    node_id: str
    path: str
    end: int = 0
    is_newest: bool = True


class ActorLogs:
    """Knows which files of which nodes are wanted, and writes what they hold.

    Args:
        folder: of the logs; None: none are kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._sources: list[_Source] = []

    def follow(self, actor: str, where: Whereabouts) -> str:
        """Follow an actor that has started, and its predecessor of the same name to the end of what it wrote.

        Returns:
            Name of its log in the folder; "" where none is kept.
        """
        if self._folder is None:
            return ""
        log = log_name(actor)
        for source in self._sources:
            source.is_newest = source.is_newest and source.log != log
        paths = dict.fromkeys(path for path in (where.log, where.out) if path)
        self._sources += [_Source(log, where.node_id, path) for path in paths]
        self._write(log, f"--- {actor} {where}, {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC ---\n".encode())
        return log

    def wanted(self, node_id: str) -> list[tuple[str, int]]:
        """Return the files to read on a node, and from which byte on."""
        return [(source.path, source.end) for source in self._sources if source.node_id == node_id]

    def take(self, node_id: str, asked: Iterable[tuple[str, int]], pieces: Iterable[Piece]) -> None:
        """Write what was found on a node where ``asked`` were wanted."""
        found = {piece.path: piece for piece in pieces}
        paths = {path for path, _ in asked}
        kept = []
        for source in self._sources:
            piece = found.get(source.path) if source.node_id == node_id else None
            if piece is not None:
                source.end = piece.end
                left_out = f"--- {piece.num_skipped_bytes} bytes left out ---\n" if piece.num_skipped_bytes else ""
                self._write(source.log, left_out.encode() + piece.data)
            is_read = piece is None and source.node_id == node_id and source.path in paths
            if source.is_newest or not is_read:
                kept.append(source)
        self._sources = kept

    def lose(self, node_id: str) -> None:
        """Forget the files of a node that has gone."""
        gone = {source.log: None for source in self._sources if source.node_id == node_id and source.is_newest}
        self._sources = [source for source in self._sources if source.node_id != node_id]
        for log in gone:
            self._write(log, b"--- its node has gone ---\n")

    def _write(self, log: str, data: bytes) -> None:
        if self._folder is None or not data:
            return
        path = self._folder / log
        with suppress(OSError):  # a full disk costs lines, and not the run
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(data)
                is_full = file.tell() >= MOST_BYTES
            if is_full:
                path.replace(path.with_name(f"{log}.1"))


def log_name(actor: str) -> str:
    """Return the name of an actor's log: as those of the processes of a run on one machine.

    >>> log_name("engine 0"), log_name("learner rank 1"), log_name("attention model")
    ('engine0.log', 'learner-rank1.log', 'attention-model.log')
    """
    return re.sub(r" (?=\d+$)", "", actor).replace(" ", "-") + ".log"
