"""How the levels of rollcage/Sokoban-v0 are made: played backwards from the solution, then solved for certain."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

from rollcage.envs.moves import draw_map, shuffled, split_of
from rollcage.envs.sokoban.level import Level, cells_of, flood, shift, steps_of
from rollcage.envs.sokoban.solver import solve
from rollcage.errors import UserError

_WALL_SHARE = 0.2  # of the cells inside the border
_MAX_POSITIONS = 5_000  # that the solver may look at: keeps every level easy to find a solution for, for the expert too


def solution_bounds(size: int, num_boxes: int) -> tuple[int, int]:
    """Return the fewest and the most moves that the expert takes for a generated level.

    >>> solution_bounds(6, 1), solution_bounds(10, 4)
    ((4, 12), (16, 50))
    """
    longest = size * (num_boxes + 1)
    return longest // 3, longest


def generate(size: int, num_boxes: int, split: str, index: int) -> dict[str, Any]:
    """Return the data of task ``index`` of ``split``, {"map": rows}: the same on every platform and Python version."""
    key = f"sokoban/{size}/{num_boxes}/{split}/{index}"
    return {"map": draw_map(key, split, partial(_draw, size, num_boxes, split))}


def _draw(size: int, num_boxes: int, split: str, rng: Random) -> list[str] | None:
    """Draw a room, put the boxes on targets, pull them away at random; None where that gives no good level."""
    floor = _room(size, rng)
    cells = shuffled(rng, list(cells_of(floor)))
    targets = sum(cells[:num_boxes])
    away = _pull_apart(size, floor, targets, cells[num_boxes], rng)
    if away is None:
        return None
    boxes, region = away
    places = list(cells_of(region))
    player = places[int(rng.random() * len(places))]
    rows = Level(size, size, floor, targets).draw(player, boxes, separator="").split("\n")
    if split_of(rows) != split:
        return None  # found out before the costly part
    try:
        num_moves = len(solve(Level.of(tuple(rows)), player, boxes, _MAX_POSITIONS))
    except UserError:
        return None
    fewest, most = solution_bounds(size, num_boxes)
    return rows if fewest <= num_moves <= most else None


def _room(size: int, rng: Random) -> int:
    """Return the floor of a room: walls all around, and inside at random places where they do not cut it in two."""
    inside = [1 << row * size + column for row in range(1, size - 1) for column in range(1, size - 1)]
    floor = sum(inside)
    num_walls = round(_WALL_SHARE * len(inside))
    for cell in shuffled(rng, inside):
        if not num_walls:
            break
        rest = floor ^ cell
        if flood(rest & -rest, rest, size) == rest:
            floor = rest
            num_walls -= 1
    return floor


def _pull_apart(size: int, floor: int, boxes: int, player: int, rng: Random) -> tuple[int, int] | None:
    """Pull boxes about, never back to where they stood all together; returns the last (boxes, player's region) with
    every box off its target, or None."""
    targets, away = boxes, None
    seen = {boxes}
    steps = steps_of(size).values()
    for _ in range(2 * size * targets.bit_count()):
        free = floor & ~boxes
        region = flood(player, free, size)
        if not boxes & targets:
            away = boxes, region
        pulls = [
            (box, step)
            for step in steps
            for box in cells_of(boxes & shift(region, -step) & shift(free, -2 * step))
            if boxes ^ box ^ shift(box, step) not in seen
        ]
        if not pulls:
            break
        box, step = pulls[int(rng.random() * len(pulls))]
        boxes ^= box ^ shift(box, step)
        player = shift(box, 2 * step)
        seen.add(boxes)
    return away
