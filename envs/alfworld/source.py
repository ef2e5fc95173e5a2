"""What a source of games is: official ones in two layouts (`pack`, `download`), or small ones of our own (`sample`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

TASK_TYPES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
SPLITS = ("train", "valid_seen", "valid_unseen", "valid_train")
LICENCE = "MIT (ALFWorld, ALFRED)"

PLACEHOLDER = "UNKNOWN GOAL"
"""Stands in the grammar of a data set for the goal of each game."""

Row = dict[str, Any]
"""What there is to know of a game without opening it: "id" (within its split), "task_type", and "game": its publisher's
name for it, by which one can tell whether it is in two splits."""


class GameText(NamedTuple):
    """A game as its publisher writes it.

    Attributes:
        domain: the rules, PDDL.
        problem: the game, PDDL.
        grammar: what is said, TWL2.
        goal: what takes the place of `PLACEHOLDER` in the grammar; None where it is complete.
        walkthrough: commands that win; none where nobody has written any.
    """

    domain: str
    problem: str
    grammar: str
    goal: str | None
    walkthrough: tuple[str, ...]


class Source(Protocol):
    """A set of games. Sources are hashable, and equal ones hold the same games."""

    @property
    def licence(self) -> str:
        """Licence of the games; "" for our own."""
        ...

    def rows(self) -> Mapping[str, Sequence[Row]]:
        """Return a row for every game, by split."""
        ...

    def __hash__(self) -> int: ...

    def text(self, task_id: str) -> GameText:
        """Return the game ``SPLIT/ID``.

        Raises:
            UserError: it cannot be read.
        """
        ...
