"""What the grid worlds share: moves written as words, and maps that belong to exactly one split."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rollcage.envs.answers import outside_thinking
from rollcage.errors import UserError

MOVES: dict[str, tuple[int, int]] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
"""Each move and its (row, column) step."""

SPLIT_SIZES = {"train": 10_000_000, "validation": 10_000, "test": 10_000}

_NUM_BUCKETS = 8
_SPLIT_OF_BUCKET = {0: "test", 1: "validation"}  # every other bucket is train
_MAX_ATTEMPTS = 2_000


def parse_moves(text: str, limit: int) -> list[str] | None:
    """Return the moves that a message asks for, or None where it asks for none.

    The policy: thinking does not count (`rollcage.envs.answers`). In the rest, what counts is the content of the last
    ``<answer>`` tag, which must be closed, or, where there is no such tag, the whole message. It must consist of 1 to
    ``limit`` of the words up, down, left and right and nothing else, separated by whitespace or commas. Case, also that
    of the tag, and surrounding whitespace do not matter.

    >>> parse_moves("Not <answer>up</answer> but <Answer> Down, LEFT </ANSWER>.", limit=2)
    ['down', 'left']
    >>> parse_moves("<think>up?</think> Right ", limit=1)
    ['right']
    >>> parse_moves("I go right", limit=1)
    """
    text = outside_thinking(text).lower()
    _, opened, inside = text.rpartition("<answer>")
    if opened:
        text, closed, _ = inside.partition("</answer>")
        if not closed:
            return None
    words = text.replace(",", " ").split(maxsplit=limit)
    return words if 1 <= len(words) <= limit and all(word in MOVES for word in words) else None


def write_moves(moves: Sequence[str]) -> str:
    """Return ``moves`` as an action: the inverse of `parse_moves`."""
    return f"<answer>{', '.join(moves)}</answer>"


def answer_format(limit: int) -> str:
    """Return the line that tells a policy how to answer."""
    if limit == 1:
        return "Each turn, answer with one move: <answer>up</answer>, down, left or right."
    return f"Each turn, answer with up to {limit} moves (up, down, left, right): <answer>up, right</answer>."


def random_moves(rng: np.random.Generator, limit: int) -> str:
    """Return an action of 1 to ``limit`` random moves."""
    words = list(MOVES)
    return write_moves([words[rng.integers(len(words))] for _ in range(rng.integers(1, limit + 1))])


def shuffled(rng: random.Random, items: Sequence[Any]) -> list[Any]:
    """Return ``items`` in random order, the same on every Python version (which only `random.random` promises)."""
    return sorted(items, key=lambda _: rng.random())


def split_of(rows: Sequence[str]) -> str:
    """Return the one split that a map belongs to: a checksum decides, so no two splits have a map in common."""
    return _SPLIT_OF_BUCKET.get(zlib.crc32("\n".join(rows).encode()) % _NUM_BUCKETS, "train")


def draw_map(key: str, split: str, draw: Callable[[random.Random], list[str] | None]) -> list[str]:
    """Return the first map of ``split`` that ``draw`` makes from a generator seeded with ``key``.

    ``draw`` may return None for "try again". Every choice must come from `random.Random.random`, the only method
    whose values Python keeps from version to version.

    Raises:
        UserError: no such map after many attempts: the arguments leave too few.
    """
    rng = random.Random(f"rollcage.{key}")
    for _ in range(_MAX_ATTEMPTS):
        rows = draw(rng)
        if rows is not None and split_of(rows) == split:
            return rows
    raise UserError(f"{key}: found no map in {_MAX_ATTEMPTS} attempts; ask for a larger size or fewer obstacles.")


def map_rows(value: Any, symbols: str) -> list[str]:
    """Return ``reset(options={"map": value})``, a list of strings or one string with line ends, as checked rows.

    Raises:
        UserError: anything else, an empty map, or a character outside ``symbols``.
    """
    rows = value.strip("\n").split("\n") if isinstance(value, str) else value
    if not isinstance(rows, (list, tuple)) or not all(isinstance(row, str) for row in rows) or not "".join(rows):
        raise UserError("options['map'] must be a list of strings, one for each row of the map.")
    if strange := sorted(set("".join(rows)) - set(symbols)):
        raise UserError(f"options['map']: unknown character {strange[0]!r} (known: {symbols!r}).")
    return list(rows)


def check_int(name: str, value: Any, low: int, high: int) -> None:
    """Raise UserError unless the argument ``name`` is an integer from ``low`` to ``high``."""
    if not isinstance(value, int) or not low <= value <= high:
        raise UserError(f"{name} must be an integer from {low} to {high}, not {value!r}.")


def turn_limit(max_turns: int | str | None, auto: float) -> int | None:
    """Return the argument ``max_turns`` with "auto" replaced by ``auto``, rounded up."""
    if isinstance(max_turns, str):
        if max_turns != "auto":
            raise UserError(f"max_turns must be an integer, 'auto' or None, not {max_turns!r}.")
        return math.ceil(auto)
    return max_turns
