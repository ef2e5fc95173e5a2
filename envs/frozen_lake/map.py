"""The maps of rollcage/FrozenLake-v0: how they are made, drawn and crossed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from random import Random
from typing import Any

import numpy as np

from rollcage.envs.moves import MOVES, draw_map, shuffled

_SOONER = 0.9999  # discount per move: among equally safe ways the shorter one


@dataclass(frozen=True, slots=True)
class Lake:
    """A map, made ready for walking. Cells are counted row by row.

    Attributes:
        rows: the map, in Gymnasium's letters.
        near: for each cell, the four cells that the moves of `MOVES` lead to; at the edge, the cell itself.
        start: the cell of the start.
        holes: cells that end the episode.
        goals: cells that end it with success.
    """

    rows: tuple[str, ...]
    near: tuple[tuple[int, ...], ...] = field(compare=False)
    start: int = field(compare=False)
    holes: frozenset[int] = field(compare=False)
    goals: frozenset[int] = field(compare=False)

    @staticmethod
    @lru_cache(maxsize=64)
    def of(rows: tuple[str, ...]) -> Lake:
        """Return the lake that ``rows`` shows."""
        cells = "".join(rows)
        places = {letter: frozenset(cell for cell, found in enumerate(cells) if found == letter) for letter in "SHG"}
        near = _near(len(rows), len(rows[0]))
        return Lake(rows, near, min(places["S"]), places["H"], places["G"])

    def draw(self, cell: int) -> str:
        """Return the map with "P" on ``cell``; spaces keep a tokenizer from joining cells."""
        cells = "".join(self.rows).replace("S", "F")
        cells = f"{cells[:cell]}P{cells[cell + 1 :]}"
        width = len(self.rows[0])
        return "\n".join(" ".join(cells[first : first + width]) for first in range(0, len(cells), width))

    def way(self, cell: int) -> list[int] | None:
        """Return the cells after ``cell`` on a shortest way to a goal, or None where there is none."""
        return _shortest_way(self.near, cell, self.goals, self.holes)


@lru_cache(maxsize=8)
def safest_moves(lake: Lake, success_rate: float, num_moves: int) -> np.ndarray:
    """Return int8 [num_moves + 1, cells]: the move (index in `MOVES`) that most probably leads to a goal, by the number
    of slippery moves that are left (value iteration; row 0 means nothing)."""
    near, goals, holes = np.array(lake.near), list(lake.goals), list(lake.holes)
    slip_rate = (1.0 - success_rate) / 2
    value = np.zeros(len(near))
    best = np.zeros((num_moves + 1, len(near)), dtype=np.int8)
    for left in range(1, num_moves + 1):
        value[goals], value[holes] = 1.0, 0.0
        reached = value[near]  # [cells, moves]
        across, along = reached[:, 2:].sum(axis=1), reached[:, :2].sum(axis=1)
        slipped = np.stack((across, across, along, along), axis=1)  # the sides of up and down are left and right
        move_values = _SOONER * (success_rate * reached + slip_rate * slipped)
        best[left], value = move_values.argmax(axis=1), move_values.max(axis=1)
    return best


def generate(size: int, hole_share: float, split: str, index: int) -> dict[str, Any]:
    """Return the data of task ``index`` of ``split``, {"map": rows}: the same on every platform and Python version."""
    key = f"frozen-lake/{size}/{hole_share:g}/{split}/{index}"
    return {"map": draw_map(key, split, partial(_draw, size, round(hole_share * size * size)))}


def _draw(size: int, num_holes: int, rng: Random) -> list[str]:
    """Place start, goal and as many of ``num_holes`` holes as leave a way that is short enough."""
    near = _near(size, size)
    start = int(rng.random() * size * size)
    row, column = divmod(start, size)
    far = [cell for cell in range(size * size) if abs(cell // size - row) + abs(cell % size - column) >= size - 1]
    goal = far[int(rng.random() * len(far))]
    holes: set[int] = set()
    way: list[int] | None = _shortest_way(near, start, {goal}, holes)
    for cell in shuffled(rng, [cell for cell in range(size * size) if cell not in (start, goal)]):
        if len(holes) == num_holes:
            break
        holes.add(cell)
        if way is not None and cell in way:  # elsewhere, a hole leaves this way as it is
            detour = _shortest_way(near, start, {goal}, holes)
            if detour is None or len(detour) > longest_way(size):
                holes.remove(cell)
            else:
                way = detour
    letters = ["H" if cell in holes else "F" for cell in range(size * size)]
    letters[start], letters[goal] = "S", "G"
    return ["".join(letters[first : first + size]) for first in range(0, size * size, size)]


def longest_way(size: int) -> int:
    """Return the most moves that the shortest way on a map may take."""
    return 2 * size


@lru_cache(maxsize=64)
def _near(num_rows: int, num_columns: int) -> tuple[tuple[int, ...], ...]:
    """Return `Lake.near`."""
    return tuple(
        tuple(
            min(max(row + down, 0), num_rows - 1) * num_columns + min(max(column + right, 0), num_columns - 1)
            for down, right in MOVES.values()
        )
        for row in range(num_rows)
        for column in range(num_columns)
    )


def _shortest_way(
    near: Sequence[Sequence[int]], start: int, goals: frozenset[int] | set[int], holes: frozenset[int] | set[int]
) -> list[int] | None:
    """Return the cells after ``start`` on a shortest way to a goal around the holes, or None (breadth first)."""
    came_from = {start: start}
    queue = deque([start])
    while queue:
        cell = queue.popleft()
        if cell in goals:
            way = []
            while cell != start:
                way.append(cell)
                cell = came_from[cell]
            return way[::-1]
        for there in near[cell]:
            if there not in came_from and there not in holes:
                came_from[there] = cell
                queue.append(there)
    return None
