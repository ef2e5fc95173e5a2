"""The games of rollcage/ALFWorld-v0: found, listed as tasks, and opened: translated once, then taken from the cache."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from rollcage.envs.alfworld.cache import DiskCache, cache_root
from rollcage.envs.alfworld.download import DownloadSource
from rollcage.envs.alfworld.engine import Game
from rollcage.envs.alfworld.pack import PackSource
from rollcage.envs.alfworld.sample import SampleSource
from rollcage.envs.alfworld.source import TASK_TYPES, GameText, Row, Source
from rollcage.envs.alfworld.translate import FORMAT, translate
from rollcage.envs.data import data_roots
from rollcage.envs.tasks import RowTasks
from rollcage.errors import UserError, did_you_mean

DATASETS = ("official", "sample")

HOW_TO_GET = (
    "install alfworld and run  alfworld-download  (it writes to ~/.cache/alfworld, or $ALFWORLD_DATA), or put them "
    "into the folder alfworld of $ROLLCAGE_DATA; `rollcage data alfworld` tells more. dataset='sample' needs no data"
)

MAX_CACHE_BYTES = 256 * 2**20
"""Of translated games on disk: some 25 KB each."""

_NUM_OPEN = 16  # games that a process keeps open: some MB each


class OpenGame(NamedTuple):
    """A game that can be played, and commands that win it (none where nobody has written any)."""

    game: Game
    walkthrough: tuple[str, ...]


class GameTasks(RowTasks):
    """The games of a source as tasks, of all types or of some.

    Raises:
        UserError: there is no such type.
    """

    def __init__(self, name: str, source: Source, task_types: str | Sequence[str] | None) -> None:
        wanted = TASK_TYPES if task_types is None else (task_types,) if isinstance(task_types, str) else task_types
        for kind in wanted:
            if kind not in TASK_TYPES:
                hint = did_you_mean(str(kind), TASK_TYPES)
                raise UserError(f"no task type {kind!r} (there are: {', '.join(TASK_TYPES)}).{hint}")
        chosen = {split: [row for row in rows if row["task_type"] in wanted] for split, rows in _rows(source).items()}
        super().__init__(name, chosen, licence=source.licence)
        self.source = source


@lru_cache(maxsize=4)  # a vector environment makes many instances
def _rows(source: Source) -> Mapping[str, Sequence[Row]]:
    return source.rows()


def find_source(dataset: str = "official", data_dir: str | Path | None = None) -> Source:
    """Return the games of a data set.

    Args:
        dataset: "official" or "sample".
        data_dir: the only folder to look in; None for the usual places (`rollcage.envs.data`, and alfworld's own).

    Raises:
        UserError: no such data set, or it is not here: says where it was looked for and how to get it.
    """
    if dataset not in DATASETS:
        raise UserError(f"no data set {dataset!r} (known: {', '.join(DATASETS)}).{did_you_mean(dataset, DATASETS)}")
    if dataset == "sample":
        return SampleSource()
    folders = places(data_dir)
    for folder in folders:
        found: Source | None = PackSource.find(folder) or DownloadSource.find(folder)
        if found is not None:
            return found
    looked = ", ".join(str(folder) for folder in folders)
    raise UserError(f"the ALFWorld games are not on this machine (looked in {looked}): {HOW_TO_GET}.")


def places(data_dir: str | Path | None = None) -> list[Path]:
    """Return the folders in which the official games are looked for, in order."""
    folders = [folder for root in data_roots(data_dir) for folder in (root / "alfworld", root)]
    if data_dir is None:
        folders.append(Path(os.environ.get("ALFWORLD_DATA") or Path.home() / ".cache" / "alfworld"))
    return folders


@lru_cache(maxsize=_NUM_OPEN)
def open_game(source: Source, task_id: str) -> OpenGame:
    """Return a game, ready to be played.

    Raises:
        MissingExtra: it was never translated on this machine, and what that takes is not installed.
        UserError: it cannot be read, or its walkthrough does not win, as where the walkthrough is of another version
            ("put" for "move") than the rules.
    """
    text = source.text(task_id)
    cache, key = translations(), _key(text)
    translated = cache.get(key)
    if translated is None:
        try:
            translated = translate(text.domain, text.problem, text.grammar, text.goal)
            _check_walkthrough(Game(translated), text.walkthrough)
        except UserError as error:
            raise type(error)(f"game {task_id}: {error}") from error
        cache.put(key, translated)
    return OpenGame(Game(translated), text.walkthrough)


def translations() -> DiskCache:
    """Return the cache of translated games."""
    return DiskCache(cache_root() / "alfworld" / "translations", MAX_CACHE_BYTES)


def _key(text: GameText) -> str:
    return blake2b(repr((FORMAT, *text)).encode(), digest_size=16).hexdigest()


def _check_walkthrough(game: Game, walkthrough: Sequence[str]) -> None:
    state = game.start
    for turn, command in enumerate(walkthrough, start=1):
        operator = game.commands(state).get(command)
        if operator is None:
            verbs = ", ".join(sorted({operator.command.partition(" ")[0] for operator in game.operators}))
            raise UserError(
                f"step {turn} of its walkthrough, {command!r}, is no command of it (commands begin with {verbs}): the "
                "walkthrough and the rules are of different versions; download the games again."
            )
        state, _ = game.play(state, operator)
    if walkthrough and not game.won(state):
        raise UserError("its walkthrough does not reach its goal: download the games again.")
