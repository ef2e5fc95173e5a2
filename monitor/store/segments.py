"""A stream on disk: ``STREAM.jsonl``, which grows, and before it closed segments ``STREAM-000001.jsonl[.gz]``.

The growing file's number is that of the newest closed segment plus one, so a row's place (segment, offset in the
uncompressed text) stays the same when its file is closed, and when it is compressed. Rows are whole lines; readers
leave out a last line without its end, and the next writer cuts it off.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, cast

Place = tuple[int, int]
"""Segment, and offset of a row in its uncompressed text."""

START: Place = (1, 0)

_CHUNK_BYTES = 1 << 20
_BUFFER_BYTES = 1 << 17
_SEGMENT = re.compile(r"(.+)-(\d{6,})\.jsonl(?:\.gz)?")


def closed_segments(folder: Path, stream: str) -> dict[int, Path]:
    """Return the closed segments by number, in order."""
    name = re.compile(re.escape(stream) + r"-(\d{6,})\.jsonl(\.gz)?")
    found: dict[int, Path] = {}
    try:
        entries = sorted(entry.name for entry in os.scandir(folder))
    except FileNotFoundError:
        return {}
    for entry in entries:  # where both are there, the compressed one is whole: it comes last, and wins
        match = name.fullmatch(entry)
        if match:
            found[int(match[1])] = folder / entry
    return dict(sorted(found.items()))


def newest_segments(folder: Path, streams: Sequence[str]) -> dict[str, int]:
    """Return the number of the newest closed segment of each stream; 0 where there is none."""
    newest = dict.fromkeys(streams, 0)
    try:
        entries = [entry.name for entry in os.scandir(folder)]
    except FileNotFoundError:
        return newest
    for entry in entries:
        match = _SEGMENT.fullmatch(entry)
        if match and match[1] in newest:
            newest[match[1]] = max(newest[match[1]], int(match[2]))
    return newest


def open_for_append(path: Path) -> BinaryIO:
    """Open for appending whole lines; a half-written last line (the writer was killed) is cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        with path.open("rb+") as raw:
            end = position = raw.seek(0, 2)
            while position:
                start = max(0, position - _CHUNK_BYTES)
                raw.seek(start)
                newline = raw.read(position - start).rfind(b"\n")
                position = start
                if newline >= 0:
                    position += newline + 1
                    break
            if position < end:
                raw.truncate(position)
    return path.open("ab", buffering=0)


def close_segment(folder: Path, stream: str) -> Path:
    """Make the growing file a closed segment; returns its path. Nobody may have it open for writing."""
    number = max(closed_segments(folder, stream), default=0) + 1
    path = folder / f"{stream}-{number:06d}.jsonl"
    (folder / f"{stream}.jsonl").rename(path)
    return path


def compress(path: Path) -> Path:
    """Compress a closed segment; whole at any moment, whenever this is killed."""
    target = path.with_name(path.name + ".gz")
    part = path.with_name(path.name + ".gz.part")
    with path.open("rb") as source, part.open("wb") as raw:
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, compresslevel=3, mtime=0) as packed:
            shutil.copyfileobj(source, packed, _CHUNK_BYTES)
        raw.flush()
        os.fsync(raw.fileno())
    part.replace(target)
    path.unlink()
    return target


def drop_oldest(folder: Path, stream: str, keep_bytes: float, newest: int) -> None:
    """Remove the oldest closed segments until the others take at most ``keep_bytes``; those from ``newest`` on stay."""
    segments = closed_segments(folder, stream)
    sizes = {number: path.stat().st_size for number, path in segments.items()}
    for number, path in segments.items():
        if number >= newest or sum(sizes.values()) <= keep_bytes:
            return
        path.unlink()
        del sizes[number]


class Streams:
    """The streams of a folder as they are now: which files, and how far they reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ends(self, streams: Sequence[str]) -> dict[str, Place]:
        """Return the place behind the last byte of each stream; a half-written line is before it."""
        while True:
            numbers = newest_segments(self.folder, streams)
            sizes = {}
            for stream in streams:
                try:
                    sizes[stream] = (self.folder / f"{stream}.jsonl").stat().st_size
                except FileNotFoundError:
                    sizes[stream] = 0
            if newest_segments(self.folder, streams) == numbers:
                return {stream: (numbers[stream] + 1, sizes[stream]) for stream in streams}

    def lines(self, stream: str, place: Place) -> Iterator[tuple[Place, bytes]]:
        """Yield (its place, a whole line with its end) from ``place`` on; what was dropped meanwhile is left out."""
        number, offset = place
        while True:
            segments = closed_segments(self.folder, stream)
            newest = max(segments, default=0)
            if number < min(segments, default=newest + 1):
                number, offset = min(segments, default=newest + 1), 0
            if number > newest + 1:
                return
            try:
                file = self._open(segments, stream, number)
            except FileNotFoundError:  # closed, compressed or dropped at this very moment, or not begun
                if closed_segments(self.folder, stream) == segments:
                    return
                continue
            with file:
                if number > newest and max(closed_segments(self.folder, stream), default=0) != newest:
                    continue  # another one than we meant
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    yield (number, offset), line
                    offset += len(line)
            if number > newest:
                return
            number, offset = number + 1, 0

    def line(self, stream: str, place: Place) -> bytes | None:
        """Return the line that begins at ``place``, without its end; None where none does (any more)."""
        number, offset = place
        if offset < 0:
            return None
        while True:
            segments = closed_segments(self.folder, stream)
            newest = max(segments, default=0)
            try:
                with self._open(segments, stream, number) as file:
                    if number > newest and max(closed_segments(self.folder, stream), default=0) != newest:
                        continue
                    file.seek(max(0, offset - 1))
                    if offset and file.read(1) != b"\n":
                        return None
                    line = file.readline()
            except FileNotFoundError:
                if closed_segments(self.folder, stream) == segments:
                    return None
                continue
            return line[:-1] if line.endswith(b"\n") else None

    def _open(self, segments: Mapping[int, Path], stream: str, number: int) -> BinaryIO:
        if number == max(segments, default=0) + 1:
            return (self.folder / f"{stream}.jsonl").open("rb", buffering=_BUFFER_BYTES)
        path = segments.get(number)
        if path is None:
            raise FileNotFoundError(f"{stream}: segment {number}")
        return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")
