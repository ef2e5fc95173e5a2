"""The official games as a pack: a few files with all games of a split each.

``games_SPLIT.jsonl.xz`` holds the games, ``index_SPLIT.jsonl`` the same rows without them, ``logic/alfred.pddl`` the
rules and ``logic/alfred.twl2`` the grammar, with `PLACEHOLDER` where a game's goal goes. A split is unpacked into the
cache when its first game is played, so that any game can be had at once.
"""

from __future__ import annotations

import json
import lzma
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollcage.envs.alfworld.cache import cache_root
from rollcage.envs.alfworld.source import LICENCE, SPLITS, GameText, Row
from rollcage.envs.tasks import read_jsonl
from rollcage.errors import UserError

_LOGIC = ("logic/alfred.pddl", "logic/alfred.twl2")


@dataclass(frozen=True)
class PackSource:
    """A pack.

    Attributes:
        folder: where it lies.
        stamps: (name, bytes, time of change in ns) of its files, so that a changed pack is another source.
    """

    folder: Path
    stamps: tuple[tuple[str, int, int], ...]
    licence: str = LICENCE

    @classmethod
    def find(cls, folder: Path) -> PackSource | None:
        """Return the pack in ``folder``, or None where there is none."""
        splits = [split for split in SPLITS if (folder / f"games_{split}.jsonl.xz").is_file()]
        names = [name for split in splits for name in (f"games_{split}.jsonl.xz", f"index_{split}.jsonl")]
        if not splits or not all((folder / name).is_file() for name in (*names, *_LOGIC)):
            return None
        states = [(name, (folder / name).stat()) for name in (*names, *_LOGIC)]
        return cls(folder.absolute(), tuple((name, state.st_size, state.st_mtime_ns) for name, state in states))

    def rows(self) -> Mapping[str, Sequence[Row]]:
        """See `Source.rows`."""
        splits = [split for split in SPLITS if any(name == f"index_{split}.jsonl" for name, _, _ in self.stamps)]
        return {
            split: read_jsonl(self.folder / f"index_{split}.jsonl", ("id", "task_type", "goal"), _row)
            for split in splits
        }

    def text(self, task_id: str) -> GameText:
        """See `Source.text`."""
        split = task_id.partition("/")[0]
        file = f"games_{split}.jsonl.xz"
        [stamp] = [f"{size}-{changed}" for name, size, changed in self.stamps if name == file]
        unpacked = cache_root() / "alfworld" / "packs" / f"{split}-{stamp}.sqlite"
        if not unpacked.exists():
            _unpack(self.folder / file, unpacked)
        with closing(sqlite3.connect(f"{unpacked.absolute().as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute("SELECT game FROM games WHERE id = ?", (task_id,)).fetchone()
        if found is None:
            raise UserError(f"{self.folder / file}: holds no game {task_id!r}, though the index names it.")
        game: dict[str, Any] = json.loads(zlib.decompress(found[0]))
        domain, grammar = _logic(self)
        return GameText(domain, game["pddl_problem"], grammar, game["goal"], tuple(game["walkthrough"]))


def _row(row: Row) -> Row:
    name = row["id"].partition("/")[2]
    return {"id": name, "game": name, "task_type": row["task_type"], "goal": row["goal"]}


@lru_cache(maxsize=4)
def _logic(source: PackSource) -> tuple[str, str]:
    domain, grammar = ((source.folder / name).read_text(encoding="utf-8") for name in _LOGIC)
    return domain, grammar


def _unpack(file: Path, target: Path) -> None:
    """Make a database of the games in ``file``; others see it whole or not at all."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            unfinished = Path(folder, target.name)
            with closing(sqlite3.connect(unfinished)) as database, lzma.open(file, "rt", encoding="utf-8") as lines:
                database.execute("PRAGMA synchronous = OFF")  # a file that is not whole never gets its name
                database.execute("CREATE TABLE games (id TEXT PRIMARY KEY, game BLOB) WITHOUT ROWID")
                database.executemany("INSERT INTO games VALUES (?, ?)", map(_entry, lines))
                database.commit()
            os.replace(unfinished, target)
    except (OSError, EOFError, lzma.LZMAError, ValueError, KeyError, sqlite3.Error) as error:
        reason = f"cannot be unpacked to {target.parent}, below $ROLLCAGE_CACHE ({error!r})"
        raise UserError(f"{file}: {reason}.") from None


def _entry(line: str) -> tuple[str, bytes]:
    row = json.loads(line)
    game = {key: row[key] for key in ("pddl_problem", "goal", "walkthrough")}
    return row["id"], zlib.compress(json.dumps(game).encode(), 6)
