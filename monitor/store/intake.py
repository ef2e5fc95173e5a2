"""From rows to the index: what a run has written since the last time, in batches, each of them one transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from rollcage.monitor.store.batch import Batch
from rollcage.monitor.store.columns import POINT, SPAN, Column
from rollcage.monitor.store.downsample import MOST, latest, merged_but_newest, thinned
from rollcage.monitor.store.segments import START, Place, Streams, closed_segments
from rollcage.monitor.store.summary import parse

INDEXED = ("metrics", "events", "timeline", "trajectories", "annotations")
_BATCH_BYTES = 16 << 20


def column_of(folder: Path, kind: str, series_id: int, generation: int) -> Column:
    """Return the column of a curve; a curve that was thinned begins another ``generation``."""
    return Column(folder / f"{series_id}-{generation}.column", SPAN if kind == "span" else POINT)


class Intake:
    """Takes rows in; only one process at a time may.

    Args:
        streams: of the run.
        folder: of the index.
        database: its tables.
        most: points that a curve may have before it is thinned.
    """

    def __init__(self, streams: Streams, folder: Path, database: sqlite3.Connection, *, most: int = MOST) -> None:
        self._streams, self._folder, self._database, self._most = streams, folder, database, most

    def take_in(self, ends: Mapping[str, Place], limit_s: float) -> bool:
        """Take in what is new, for about ``limit_s`` seconds; returns whether that was all.

        Args:
            ends: where the streams end by now.
            limit_s: seconds.

        Raises:
            KeyError: a stream is shorter than it was: another run is in the same folder.
        """
        places = {name: (segment, offset) for name, segment, offset in self._database.execute("SELECT * FROM streams")}
        ends_s, complete = time.monotonic() + limit_s, True
        for number, stream in enumerate(INDEXED):
            place: Place = places.get(stream, START)
            if ends[stream] < place:
                raise KeyError(f"{stream} is shorter than it was")
            now_s = time.monotonic()
            until_s = now_s + (ends_s - now_s) / (len(INDEXED) - number)  # what one leaves over, the others have
            for is_all in self._batches(stream, place, until_s):
                if not is_all and time.monotonic() >= until_s:
                    complete = False
                    break
        self._forget_dropped()
        return complete

    def _batches(self, stream: str, place: Place, until_s: float) -> Iterator[bool]:
        """Take in batch after batch, and say each time whether nothing is left."""
        is_all = False
        while not is_all:
            batch, size, is_all = Batch(self._database), 0, True
            end: Place | None = None
            began_s = time.monotonic()
            for at, line in self._streams.lines(stream, place):
                if (
                    end is None and place[1]
                ):  # to find the place in a compressed file takes long: read for as long at least
                    now_s = time.monotonic()
                    until_s = max(until_s, 2 * now_s - began_s)
                row = parse(line)
                if row is not None:
                    try:
                        batch.add(stream, at, row)
                    except (KeyError, TypeError, ValueError):  # not one of ours: what can be read still is
                        pass
                end = at[0], at[1] + len(line)
                size += len(line)
                if size >= _BATCH_BYTES or time.monotonic() >= until_s:
                    is_all = False
                    break
            if end is None:
                return
            with self._database:
                self._write(batch)
                self._database.execute("INSERT OR REPLACE INTO streams VALUES (?, ?, ?)", (stream, *end))
            place = end
            yield is_all

    def _write(self, batch: Batch) -> None:
        run = self._database
        known = {row[:2]: row[2:] for row in run.execute("SELECT kind, key, id, length, generation FROM series")}
        grown = []
        for kind, key, name, records in batch.records():
            if (kind, key) not in known:
                found = run.execute("INSERT INTO series(kind, key, name) VALUES (?, ?, ?)", (kind, key, name))
                known[kind, key] = found.lastrowid, 0, 0
            series_id, length, generation = known[kind, key]
            column = column_of(self._folder, kind, series_id, generation)
            length = column.append(length, records)
            if length > self._most:
                kept = self._thinned(kind, column.read(length))
                # Others may still read the old file; it goes when the next generation begins.
                (self._folder / f"{series_id}-{generation - 1}.column").unlink(missing_ok=True)
                generation += 1
                length = column_of(self._folder, kind, series_id, generation).write(kept)
            grown.append((length, generation, series_id))
        run.executemany("UPDATE series SET length = ?, generation = ? WHERE id = ?", grown)
        batch.write()

    def _thinned(self, kind: str, points: npt.NDArray[Any]) -> npt.NDArray[Any]:
        most, newest = self._most // 2, self._most // 32
        if kind == "span":
            return merged_but_newest(points, most, newest)
        return thinned(latest(points) if kind == "metric" else points, most, newest)

    def _forget_dropped(self) -> None:
        """Forget rows whose segment was dropped; curves stay."""
        with self._database:
            for stream in ("events", "trajectories", "annotations"):
                oldest = min(closed_segments(self._streams.folder, stream), default=None)
                if oldest is not None and oldest > 1:
                    if stream == "trajectories":
                        self._database.execute(
                            "DELETE FROM conversations WHERE row IN (SELECT row FROM trajectories WHERE segment < ?)",
                            (oldest,),
                        )
                    self._database.execute(f"DELETE FROM {stream} WHERE segment < ?", (oldest,))
