"""The rules of Sokoban on bitboards: cell number row * width + column is one bit of a Python integer.

A shift of such an integer moves all boxes, or a whole region, at once; the border of walls keeps a shift from wrapping.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rollcage.envs.moves import MOVES
from rollcage.errors import UserError

SYMBOLS = "#_$.*@+"
"""Wall, floor, box, target, box on target, player, player on target: the usual ones, with a visible floor."""


def shift(cells: int, step: int) -> int:
    """Return every cell of ``cells`` moved by ``step`` cell numbers."""
    return cells << step if step >= 0 else cells >> -step


def cells_of(cells: int) -> Iterator[int]:
    """Yield the single cells (one bit each) of ``cells``."""
    while cells:
        cell = cells & -cells
        yield cell
        cells ^= cell


@lru_cache(maxsize=64)
def steps_of(width: int) -> dict[str, int]:
    """Return, for each move of `MOVES`, the difference of cell numbers."""
    return {word: down * width + right for word, (down, right) in MOVES.items()}


def flood(start: int, free: int, width: int) -> int:
    """Return ``start`` and the cells of ``free`` that are connected with it."""
    region, grown = 0, start
    while grown != region:
        region = grown
        grown = (region | region << 1 | region >> 1 | region << width | region >> width) & free
    return region


@dataclass(frozen=True, slots=True)
class Level:
    """The unchanging part of a level. What changes is (player, boxes), each an integer of cells.

    Attributes:
        width: columns.
        height: rows.
        floor: all cells but walls.
        targets: cells where boxes belong; as many as boxes.
        live: cells from which a lone box can be pushed to a target.
        distances: for each target, {cell: pushes that a lone box at that cell needs to reach it}.
        start: (player, boxes) at the start.
    """

    width: int
    height: int
    floor: int
    targets: int
    live: int = 0
    distances: tuple[dict[int, int], ...] = ()
    start: tuple[int, int] = (0, 0)

    @staticmethod
    @lru_cache(maxsize=64)
    def of(rows: tuple[str, ...]) -> Level:
        """Return the level that ``rows`` (of equal length, closed by walls) show."""
        letters = "".join(rows)

        def where(symbols: str) -> int:
            return sum(1 << cell for cell, letter in enumerate(letters) if letter in symbols)

        width, floor, targets = len(rows[0]), where("_$.*@+"), where(".*+")
        distances = tuple(_push_distances(width, floor, target) for target in cells_of(targets))
        live = sum({cell for table in distances for cell in table})
        return Level(width, len(rows), floor, targets, live, distances, (where("@+"), where("$*")))

    def move(self, word: str, player: int, boxes: int) -> tuple[int, int]:
        """Return (player, boxes) after one move; the same where a wall or a second box is in the way."""
        step = steps_of(self.width)[word]
        there = shift(player, step)
        if there & boxes:
            beyond = shift(there, step)
            return (there, boxes ^ there ^ beyond) if beyond & self.floor & ~boxes else (player, boxes)
        return (there, boxes) if there & self.floor else (player, boxes)

    def reach(self, player: int, boxes: int) -> int:
        """Return the cells that the player can walk to, without a push."""
        return flood(player, self.floor & ~boxes, self.width)

    def frozen(self, boxes: int) -> int:
        """Return the boxes that can never move again and leave the level solvable.

        Along each axis a wall or a frozen box is next to such a box, or the cells on both sides are not live; so every
        box on a cell that is not live is one. Found by taking all for frozen and dropping those that are not held.
        """
        held, dead = boxes, ~self.live
        while True:
            solid, frozen = ~self.floor | held, held
            for step in (1, self.width):
                held &= shift(solid, step) | shift(solid, -step) | (shift(dead, step) & shift(dead, -step))
            if held == frozen:
                return frozen

    def deadlocked(self, boxes: int) -> bool:
        """Return whether a box can never reach a target, wherever the player stands.

        True is certain; false is not: this sees boxes on cells that are not live and boxes that hold each other.
        """
        return self.frozen(boxes) & ~self.targets != 0

    def draw(self, player: int, boxes: int, separator: str = " ") -> str:
        """Return the position as text, one line a row; spaces keep a tokenizer from joining cells."""
        lines = []
        for row in range(self.height):
            letters = []
            for cell in range(row * self.width, (row + 1) * self.width):
                bit = 1 << cell
                on_target = bool(self.targets & bit)
                if boxes & bit:
                    letters.append("$*"[on_target])
                elif player & bit:
                    letters.append("@+"[on_target])
                else:
                    letters.append("#" if not self.floor & bit else "_."[on_target])
            lines.append(separator.join(letters))
        return "\n".join(lines)


def parse_level(rows: Sequence[str]) -> list[str]:
    """Return a level by hand as rows for `Level.of`: floor may also be written " " or "-", and rows may be ragged.

    Cells outside the walls become walls.

    Raises:
        UserError: not exactly one player, no box, more or fewer boxes than targets, every box on a target, walls that
            do not close, or a box or target outside them.
    """
    width = max(map(len, rows))
    padded = tuple(row.replace(" ", "_").replace("-", "_").ljust(width, "_") for row in rows)
    letters = "".join(padded)
    count = {symbol: letters.count(symbol) for symbol in SYMBOLS}
    num_boxes, num_targets = count["$"] + count["*"], count["."] + count["*"] + count["+"]
    if count["@"] + count["+"] != 1:
        raise UserError("options['map'] must have exactly one player '@' (or '+', on a target).")
    if num_boxes != num_targets or num_boxes == 0:
        raise UserError(
            f"options['map'] must have as many targets as boxes, at least one, not {num_boxes} and {num_targets}."
        )
    if not count["$"]:
        raise UserError("options['map'] is solved already: put a box off the targets.")
    inside, edge = set(), [letters.index("@" if count["@"] else "+")]
    while edge:
        cell = edge.pop()
        if cell in inside or letters[cell] == "#":
            continue
        inside.add(cell)
        row, column = divmod(cell, width)
        if row in (0, len(padded) - 1) or column in (0, width - 1):
            raise UserError(f"options['map']: the walls are open at row {row + 1}, column {column + 1}; close them.")
        edge += [cell - 1, cell + 1, cell - width, cell + width]
    for cell, letter in enumerate(letters):
        if letter in "$.*" and cell not in inside:
            raise UserError(f"options['map']: {letter!r} at row {cell // width + 1} is walled off from the player.")
    closed = "".join(letter if cell in inside else "#" for cell, letter in enumerate(letters))
    return [closed[first : first + width] for first in range(0, len(closed), width)]


def _push_distances(width: int, floor: int, target: int) -> dict[int, int]:
    """Return, for each cell from which a lone box can be pushed to ``target``, the pushes that it takes."""
    distances: dict[int, int] = {}
    layer, num_pushes = target, 0
    while layer:
        distances |= dict.fromkeys(cells_of(layer), num_pushes)
        before = 0
        for step in steps_of(width).values():  # the box stood one step back, and the player behind it
            before |= shift(layer, -step) & floor & shift(floor, step)
        layer = before & ~sum(distances)
        num_pushes += 1
    return distances
