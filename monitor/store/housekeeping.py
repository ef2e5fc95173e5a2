"""What a writer leaves to a thread: indexing, compressing and dropping closed segments, one at a time."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

from rollcage.errors import RollcageError
from rollcage.monitor.store.index import Index
from rollcage.monitor.store.limits import StoreConfig
from rollcage.monitor.store.segments import closed_segments, compress, drop_oldest

STREAMS = ("metrics", "events", "timeline", "trajectories", "annotations", "evaluations")


class Housekeeping:
    """Keeps a run folder in order while its writer goes on.

    Each closed segment is taken into the index before it is compressed, so that opening a long run never means reading
    all of it; what a killed writer left undone is done with the next segment.

    Args:
        run: the run folder.
        limits: how large it may grow.
    """

    def __init__(self, run: Path, limits: StoreConfig) -> None:
        self._run, self._limits = run, limits
        self._wanted = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None
        """What went wrong last; the rows are safe whatever goes wrong here."""

    def segment_closed(self) -> None:
        """Have the thread look for closed segments; returns at once."""
        with self._lock:
            self._wanted.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="run folder")
                self._thread.start()

    def close(self) -> None:
        """Wait until all is done; idempotent."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while True:
            self._wanted.clear()
            try:
                self._tidy()
            except (OSError, RollcageError, sqlite3.Error) as error:  # a full disk, say: the next segment tries again
                self.error = error
            with self._lock:
                if not self._wanted.is_set():
                    self._thread = None
                    return

    def _tidy(self) -> None:
        closed = {stream: closed_segments(self._run, stream) for stream in STREAMS}
        index = Index(self._run)
        try:
            with index.reading():  # takes in what is there: what is dropped below stays in the curves
                pass
        finally:
            index.close()
        for stream, segments in closed.items():
            for path in segments.values():
                if path.suffix != ".gz":
                    compress(path)
            drop_oldest(self._run, stream, self._limits.keep_bytes(stream), newest=max(segments, default=0))
