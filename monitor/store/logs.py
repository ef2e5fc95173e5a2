"""Logs of a run's processes, on this machine or on a cluster: who writes which, and the end of each."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from rollcage.errors import UserError
from rollcage.monitor.store.reader import RunReader
from rollcage.monitor.store.secrets import masked

FOLDER = "logs"
MOST_STARTS = 2000
"""Newest starts of actors that are looked through."""


def list_actors(reader: RunReader) -> list[dict[str, Any]]:
    """Return who works, or has worked, for a run: actors of a cluster, and whatever else has left a log.

    Keys: ``actor`` (its name), ``node`` ("" on one machine), ``pid``, ``started_at`` and ``num_starts`` (None where
    nobody told), ``file`` (name of its log, "" where there is none), ``size_bytes``, ``written_at``.
    """
    files = {entry.name: entry.stat() for entry in _entries(reader.path)}
    found: dict[str, dict[str, Any]] = {}
    for event in reader.events(0, MOST_STARTS, ["actor_started"])[1]:  # the newest first
        name = str(event.get("actor"))
        if name in found:
            found[name]["num_starts"] += 1
        else:
            row = {key: event.get(key) for key in ("node", "pid")}
            found[name] = {**row, "started_at": event.get("time"), "num_starts": 1, "file": str(event.get("file", ""))}
    told = {row["file"] for row in found.values()}
    for file in files.keys() - told:
        found[file] = {"node": "", "pid": None, "started_at": None, "num_starts": None, "file": file}
    for row in found.values():
        stat = files.get(row["file"])
        row["file"] = row["file"] if stat else ""
        row["size_bytes"], row["written_at"] = (stat.st_size, stat.st_mtime) if stat else (0, None)
    return [{"actor": name, **found[name]} for name in sorted(found, key=lambda name: (name in files, _natural(name)))]


def read_tail(folder: Path, file: str, most_bytes: int) -> dict[str, Any]:
    """Return the end of one log, in whole lines and without its secrets: ``file``, ``text``, ``size_bytes``, ``start``
    (the text's first byte in the log).

    Raises:
        UserError: the run has no such log.
    """
    if file not in {entry.name for entry in _entries(folder)}:
        raise UserError("this run has no such log.")
    descriptor = os.open(folder / FOLDER / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as log:
        size = log.seek(0, os.SEEK_END)
        start = max(0, size - most_bytes)
        log.seek(start)
        data = log.read(most_bytes)
    if start:  # a secret whose name is cut off would not be known for one
        start += (cut := data.find(b"\n") + 1 or len(data))
        data = data[cut:]
    return {"file": file, "text": masked(data.decode(errors="replace")), "size_bytes": size, "start": start}


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the files of the folder of logs; links, which could lead anywhere, are none."""
    path = folder / FOLDER
    if path.is_symlink() or not path.is_dir():
        return []
    with os.scandir(path) as entries:
        return [entry for entry in entries if entry.is_file(follow_symlinks=False)]


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
