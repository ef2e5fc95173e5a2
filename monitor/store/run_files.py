"""What every part of a run's reader stands on: its folder, its index, and its rows."""

from __future__ import annotations

from pathlib import Path

from rollcage.errors import UserError
from rollcage.monitor.store.index import Index
from rollcage.monitor.store.segments import Place
from rollcage.monitor.store.summary import Row, parse


class RunFiles:
    """A run folder that is being read; thread-safe.

    Args:
        path: the run folder.
        pace_s: see `Index`; by default every call has taken in all that was written before it.

    Raises:
        UserError: it is no run folder.
    """

    def __init__(self, path: str | Path, *, pace_s: float = float("inf")) -> None:
        self.path = Path(path)
        if not (self.path / "config.json").is_file():
            raise UserError(
                f"{self.path}: not a run folder (no config.json); give the folder that `rollcage train` printed."
            )
        self._index = Index(self.path, pace_s=pace_s)

    def close(self) -> None:
        """Let go of the files; idempotent, and the next call opens them again."""
        self._index.close()

    def _row(self, stream: str, place: Place) -> Row | None:
        line = self._index.streams.line(stream, place)
        return None if line is None else parse(line)
