"""Git's names of objects, computed without git: the same files and dates give the same commit on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

AUTHOR = "Rollcage <rollcage@localhost>"
DATE = "1735689600 +0000"
"""Of every commit that Rollcage makes: the first of January 2025."""
MESSAGE = "Base"


def commit_id(files: Mapping[str, bytes]) -> str:
    """Return the id of a commit without parents that holds ``files`` (paths with "/", none of them executable).

    It is what ``git commit`` gives with `AUTHOR`, `DATE` and `MESSAGE`.
    """
    people = f"author {AUTHOR} {DATE}\ncommitter {AUTHOR} {DATE}\n"
    return _name("commit", f"tree {_tree(files)}\n{people}\n{MESSAGE}\n".encode())


def _tree(files: Mapping[str, bytes]) -> str:
    folders: dict[str, dict[str, bytes]] = {}
    entries: list[tuple[str, str, str]] = []
    for path, data in files.items():
        name, slash, rest = path.partition("/")
        if slash:
            folders.setdefault(name, {})[rest] = data
        else:
            entries.append((name, "100644", _name("blob", data)))
    entries += [(f"{name}/", "40000", _tree(inside)) for name, inside in folders.items()]
    body = b"".join(
        f"{mode} {name.rstrip('/')}\0".encode() + bytes.fromhex(object_id)
        for name, mode, object_id in sorted(entries, key=lambda entry: entry[0].encode())
    )
    return _name("tree", body)


def _name(kind: str, data: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()
