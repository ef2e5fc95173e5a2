"""A* search over pushes: solves a Sokoban position with the fewest pushes, or shows that it cannot be solved."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count, permutations

from rollcage.envs.sokoban.level import Level, cells_of, shift, steps_of
from rollcage.errors import UserError

MAX_POSITIONS = 100_000
"""Positions after which `solve` gives up."""


def solve(level: Level, player: int, boxes: int, max_positions: int = MAX_POSITIONS) -> list[str]:
    """Return moves that put every box on a target: the fewest pushes, and shortest walks between them.

    Positions that differ only by where the player can walk to are one. Boxes that can never reach a target are cut off
    (`Level.deadlocked`). The estimate is the best assignment of boxes to targets, each box as if alone.

    Raises:
        UserError: the position cannot be solved, or no solution was found within ``max_positions``.
    """
    floor, live, targets, steps = level.floor, level.live, level.targets, steps_of(level.width)
    estimates: dict[int, int | None] = {}

    def estimate(boxes: int) -> int | None:
        if boxes not in estimates:
            estimates[boxes] = _fewest_pushes(level, boxes)
        return estimates[boxes]

    least = None if level.deadlocked(boxes) else estimate(boxes)
    if least is None:
        raise UserError("this position cannot be solved any more: a box can never reach a target.")
    start = (boxes, level.reach(player, boxes))
    came_from: dict[tuple[int, int], tuple[tuple[int, int], int, str] | None] = {start: None}
    num_pushes = {start: 0}
    order = count(0, -1)  # of equal positions the newest first
    frontier = [(least, next(order), start)]
    done: set[tuple[int, int]] = set()
    while frontier:
        _, _, position = heappop(frontier)
        if position in done:
            continue
        done.add(position)
        boxes, region = position
        if boxes == targets:
            return _moves(level, player, came_from, position)
        if len(done) > max_positions:
            raise UserError(f"found no solution of this position among {max_positions} positions; it may have none.")
        pushes = num_pushes[position] + 1
        free = floor & ~boxes
        for word, step in steps.items():
            for box in cells_of(boxes & shift(region, step) & shift(free & live, -step)):
                pushed = shift(box, step)
                after = boxes ^ box ^ pushed
                left = estimate(after)
                if left is None or level.frozen(after) & ~targets:
                    continue
                reached = (after, level.reach(box, after))
                if pushes < num_pushes.get(reached, pushes + 1):
                    num_pushes[reached] = pushes
                    came_from[reached] = (position, box, word)
                    heappush(frontier, (pushes + left, next(order), reached))
    raise UserError("this position cannot be solved any more.")


def _fewest_pushes(level: Level, boxes: int) -> int | None:
    """Return the fewest pushes if no box were in another's way, or None where the boxes do not fit the targets."""
    cells = list(cells_of(boxes))
    if len(cells) > 4:  # the assignment grows as the factorial: each box to its nearest target
        nearest = [[table[cell] for table in level.distances if cell in table] for cell in cells]
        return sum(map(min, nearest)) if all(nearest) else None
    best = None
    for tables in permutations(level.distances):
        total = 0
        for cell, table in zip(cells, tables, strict=True):
            if cell not in table:
                break
            total += table[cell]
        else:
            best = total if best is None else min(best, total)
    return best


def _moves(
    level: Level,
    player: int,
    came_from: dict[tuple[int, int], tuple[tuple[int, int], int, str] | None],
    position: tuple[int, int],
) -> list[str]:
    """Return the moves from ``player`` along the pushes that led to ``position``."""
    pushes = []
    while (link := came_from[position]) is not None:
        position, box, word = link
        pushes.append((position[0], box, word))
    moves: list[str] = []
    for boxes, box, word in reversed(pushes):
        moves += _walk(level, player, shift(box, -steps_of(level.width)[word]), boxes)
        moves.append(word)
        player = box
    return moves


def _walk(level: Level, player: int, goal: int, boxes: int) -> list[str]:
    """Return the moves of a shortest walk from ``player`` to ``goal`` without a push (breadth first from the goal)."""
    free = level.floor & ~boxes
    layers = [goal]
    seen = goal
    while not layers[-1] & player:
        grown = 0
        for step in steps_of(level.width).values():
            grown |= shift(layers[-1], step)
        layers.append(grown & free & ~seen)
        seen |= layers[-1]
    moves = []
    for layer in reversed(layers[:-1]):
        word, player = next((w, shift(player, s)) for w, s in steps_of(level.width).items() if shift(player, s) & layer)
        moves.append(word)
    return moves
