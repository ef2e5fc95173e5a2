"""rollcage/FrozenLake-v0: cross a frozen lake without falling into a hole, in text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np

from rollcage.envs.core import TextEnv, Turn
from rollcage.envs.frozen_lake.map import Lake, generate, longest_way, safest_moves
from rollcage.envs.moves import (
    MOVES,
    SPLIT_SIZES,
    answer_format,
    check_int,
    map_rows,
    parse_moves,
    random_moves,
    turn_limit,
    write_moves,
)
from rollcage.envs.tasks import GeneratedTasks, Task
from rollcage.errors import UserError

_WORDS = list(MOVES)
_SIDES = ((2, 3), (2, 3), (0, 1), (0, 1))  # of each move, the two that the ice may make of it


class FrozenLakeEnv(TextEnv):
    """Cross a frozen lake without falling into a hole.

    ## Description
    The world of Gymnasium's FrozenLake in text, on a new map every time. A map is ``size`` x ``size`` cells with the
    start, the goal and ``hole_share`` of the cells as holes, all at random places; the goal can always be reached, on a
    way of at least ``size - 1`` and at most ``2 * size`` moves. With ``is_slippery`` a move goes where it should with
    probability ``success_rate``, else to one of the two sides of it with equal probability.

    ## Action Space
    `UnicodeText`. Thinking does not count (`rollcage.envs.answers`). What counts is the content of the last
    ``<answer>`` tag, which must be closed, or, where there is no tag, the whole message: 1 to ``moves_per_turn`` of the
    words up, down, left and right, separated by whitespace or commas. Case and surrounding whitespace do not matter.
    Anything else is invalid: nobody moves, the observation says so, and the episode goes on. A move over the edge is
    valid and leaves you where you are. Moves after the end are left out.

    ## Observation Space
    `UnicodeText`. First the rules, the answer format and the map; then only the newest map: ``P`` you, ``F`` ice,
    ``H`` hole, ``G`` goal.

    ## Rewards
    1 at the goal, else 0; minus ``step_penalty`` for every move, and minus ``invalid_penalty`` for an invalid action.

    ## Episode End
    Terminated at the goal (success) and in a hole (no success); truncated after ``max_turns``.

    ## Info
    The keys of `TextEnv`, and ``valid_action`` (bool; true at the reset).

    ## Tasks
    Splits train, validation and test have no map in common. A task depends on its id, ``size`` and ``hole_share``
    only. ``reset(options={"map": rows})`` takes a map of your own, in Gymnasium's letters S, F, H and G (several goals
    are fine, and it need not be square).

    ## Policies
    ``expert`` takes a shortest way; on slippery ice, the move that most probably leads to the goal in the turns that
    are left (value iteration; of equally safe ways, the shorter). ``random_action`` is uniform.

    ## Arguments
    - ``split``: "train", "validation" or "test".
    - ``size``: cells along a side, 3 to 20.
    - ``hole_share``: share of the cells that are holes, 0 to 0.6; on small maps fewer where more would bar the goal.
    - ``is_slippery``: moves may slip to a side.
    - ``success_rate``: probability that a slippery move goes where it should, above 0, at most 1.
    - ``moves_per_turn``: most moves in one action, 1 to 100.
    - ``step_penalty``: subtracted for every move.
    - ``invalid_penalty``: subtracted for an invalid action.
    - ``max_turns``: turns until truncation; "auto" is twice the longest way, divided by ``success_rate`` on slippery
      ice and by ``moves_per_turn``; None for no limit.
    - ``render_mode``: None or "ansi".

    Raises:
        UserError: an argument out of range, or a map of your own that is malformed or has no way to the goal.

    ## Version History
    - v0: first version.
    """

    option_keys: ClassVar[tuple[str, ...]] = ("task", "map")

    def __init__(
        self,
        *,
        split: str = "train",
        size: int = 4,
        hole_share: float = 0.2,
        is_slippery: bool = False,
        success_rate: float = 1 / 3,
        moves_per_turn: int = 1,
        step_penalty: float = 0.0,
        invalid_penalty: float = 0.0,
        max_turns: int | Literal["auto"] | None = "auto",
        render_mode: str | None = None,
    ) -> None:
        check_int("size", size, 3, 20)
        check_int("moves_per_turn", moves_per_turn, 1, 100)
        if not 0 <= hole_share <= 0.6:
            raise UserError(f"hole_share must be 0 to 0.6, not {hole_share}.")
        if not 0 < success_rate <= 1:
            raise UserError(f"success_rate must be above 0 and at most 1, not {success_rate}.")
        self.success_rate = success_rate if is_slippery else 1.0
        limit = turn_limit(max_turns, 2 * longest_way(size) / self.success_rate / moves_per_turn)
        tasks = GeneratedTasks(f"frozen-lake-{size}", SPLIT_SIZES, partial(generate, size, hole_share))
        super().__init__(tasks, split=split, max_turns=limit, render_mode=render_mode)
        self.is_slippery, self.moves_per_turn = is_slippery, moves_per_turn
        self.step_penalty, self.invalid_penalty = step_penalty, invalid_penalty

    def choose_task(self, options: Mapping[str, Any]) -> Task:
        """Return the map of ``options``, or see `TextEnv.choose_task`."""
        if "map" not in options:
            return super().choose_task(options)
        if "task" in options:
            raise UserError("give the reset option 'task' or 'map', not both.")
        rows = map_rows(options["map"], "FSHG")
        if "".join(rows).count("S") != 1:
            raise UserError("options['map'] must have exactly one start 'S'.")
        if len({len(row) for row in rows}) > 1:
            raise UserError("options['map']: all rows must have the same length.")
        lake = Lake.of(tuple(rows))
        if lake.way(lake.start) is None:
            raise UserError("options['map']: no way leads from the start 'S' to a goal 'G'.")
        return Task("map", {"map": rows})

    def begin(self, task: Task) -> str:
        """See `TextEnv.begin`. The state is the cell we stand on, counted row by row."""
        self.state = self._lake.start
        slips = " The ice is slippery: a move may take you to a side of it instead." if self.is_slippery else ""
        return (
            "You (P) are on a frozen lake. Walk over the ice (F) to the goal (G); do not step into a hole (H)."
            f"{slips}\n{answer_format(self.moves_per_turn)}\n\n{self._lake.draw(self.state)}"
        )

    def reset_info(self) -> Mapping[str, Any]:
        """See `TextEnv.reset_info`."""
        return {"valid_action": True}

    def advance(self, action: str) -> Turn:
        """See `TextEnv.advance`."""
        lake = self._lake
        moves = parse_moves(action, self.moves_per_turn)
        if moves is None:
            text = f"That is no valid action. {answer_format(self.moves_per_turn)}\n\n{lake.draw(self.state)}"
            return Turn(text, 0.0 - self.invalid_penalty, info={"valid_action": False})
        reward = 0.0
        for word in moves:
            self.state = lake.near[self.state][self._slide(_WORDS.index(word))]
            reward -= self.step_penalty
            if self.state in lake.goals:
                return Turn("You reached the goal.", reward + 1.0, True, True, {"valid_action": True})
            if self.state in lake.holes:
                return Turn("You fell into a hole.", reward, True, info={"valid_action": True})
        return Turn(lake.draw(self.state), reward, info={"valid_action": True})

    def expert(self) -> str:
        """See `TextEnv.expert`."""
        lake = self._lake
        if self.state in lake.goals or self.state in lake.holes:
            raise UserError("the episode is over: no move is left to make.")
        if self.is_slippery:
            horizon = 10 * len(lake.near)  # beyond it, more turns make no difference
            limit = horizon if self.max_turns is None else min(horizon, self.max_turns)
            turns_left = limit if self.max_turns is None else min(limit, self.max_turns - self.num_turns)
            return write_moves([_WORDS[safest_moves(lake, self.success_rate, limit)[turns_left][self.state]]])
        way = [self.state, *(lake.way(self.state) or ())]
        moves = [_WORDS[lake.near[here].index(there)] for here, there in pairwise(way)]
        return write_moves(moves[: self.moves_per_turn])

    def random_action(self, rng: np.random.Generator) -> str:
        """See `TextEnv.random_action`."""
        return random_moves(rng, self.moves_per_turn)

    @property
    def _lake(self) -> Lake:
        return Lake.of(tuple(self.task.data["map"]))

    def _slide(self, move: int) -> int:
        """Return the move that the ice makes of ``move``."""
        if not self.is_slippery:
            return move
        chance = self.np_random.random()
        if chance < self.success_rate:
            return move
        return _SIDES[move][chance < (1 + self.success_rate) / 2]
