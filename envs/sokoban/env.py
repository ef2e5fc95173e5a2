"""rollcage/Sokoban-v0: push every box onto a target, in text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from rollcage.envs.core import TextEnv, Turn
from rollcage.envs.moves import (
    SPLIT_SIZES,
    answer_format,
    check_int,
    map_rows,
    parse_moves,
    random_moves,
    turn_limit,
    write_moves,
)
from rollcage.envs.sokoban.level import SYMBOLS, Level, parse_level
from rollcage.envs.sokoban.solver import solve
from rollcage.envs.sokoban.tasks import generate, solution_bounds
from rollcage.envs.tasks import GeneratedTasks, Task
from rollcage.errors import UserError


class SokobanEnv(TextEnv):
    """Push every box onto a target.

    ## Description
    Sokoban in text, on a new level every time: a room of ``size`` x ``size`` cells, its border of walls included, with
    ``num_boxes`` boxes and as many targets, no box on a target at first. You push a box by walking into it; you can
    neither pull nor push two at once, so a box in a corner stays there. Every level is played backwards from its
    solution, so that it can be solved, and then solved: the expert takes at least a third of and at most ``size *
    (num_boxes + 1)`` moves.

    ## Action Space
    `UnicodeText`. Thinking does not count (`rollcage.envs.answers`). What counts is the content of the last
    ``<answer>`` tag, which must be closed, or, where there is no tag, the whole message: 1 to ``moves_per_turn`` of the
    words up, down, left and right, separated by whitespace or commas. Case and surrounding whitespace do not matter.
    Anything else is invalid: nobody moves, the observation says so, and the episode goes on. A move against a wall, or
    against a box that cannot move, is valid and changes nothing. Moves after the end are left out.

    ## Observation Space
    `UnicodeText`. First the rules, the answer format and the room; then only the newest room: ``#`` wall, ``_`` floor,
    ``$`` box, ``.`` target, ``*`` box on a target, ``@`` you, ``+`` you on a target.

    ## Rewards
    ``success_reward`` (1) when every box is on a target, else 0; minus ``step_penalty`` for every move, plus
    ``box_reward`` for every box put on a target and minus it for every box taken off one, minus ``invalid_penalty`` for
    an invalid action. The rewards of gym-sokoban: ``step_penalty=0.1, box_reward=1, success_reward=10``.

    ## Episode End
    Terminated when every box is on a target (success), and with ``end_on_deadlock`` in a deadlock (no success);
    truncated after ``max_turns``.

    ## Info
    The keys of `TextEnv`, and ``valid_action`` (bool; true at the reset), ``boxes_on_target`` (int), ``deadlock``
    (bool: a box can never reach a target any more. True is certain; some lost positions are not seen).

    ## Tasks
    Splits train, validation and test have no level in common. A task depends on its id, ``size`` and ``num_boxes``
    only. ``reset(options={"map": rows})`` takes a level of your own, in the symbols above (floor also " " or "-"; any
    size and number of boxes; whether it can be solved is not checked).

    ## Policies
    ``expert`` solves the position as it is now, with the fewest pushes (A*), and raises UserError where it cannot be
    solved any more, or where a search of 100,000 positions (some seconds) finds no solution. ``random_action`` is
    uniform.

    ## Arguments
    - ``split``: "train", "validation" or "test".
    - ``size``: cells along a side, 5 to 10.
    - ``num_boxes``: boxes, 1 to 4, and at most ``size - 3``.
    - ``moves_per_turn``: most moves in one action, 1 to 100.
    - ``success_reward``: reward for every box on a target.
    - ``step_penalty``: subtracted for every move.
    - ``box_reward``: added for a box put on a target, subtracted for a box taken off.
    - ``invalid_penalty``: subtracted for an invalid action.
    - ``end_on_deadlock``: end the episode when a deadlock is seen.
    - ``max_turns``: turns until truncation; "auto" is twice the longest solution, divided by ``moves_per_turn``; None
      for no limit.
    - ``render_mode``: None or "ansi".

    Raises:
        UserError: an argument out of range, or a malformed level of your own.

    ## Version History
    - v0: first version.
    """

    option_keys: ClassVar[tuple[str, ...]] = ("task", "map")

    def __init__(
        self,
        *,
        split: str = "train",
        size: int = 6,
        num_boxes: int = 1,
        moves_per_turn: int = 1,
        success_reward: float = 1.0,
        step_penalty: float = 0.0,
        box_reward: float = 0.0,
        invalid_penalty: float = 0.0,
        end_on_deadlock: bool = False,
        max_turns: int | Literal["auto"] | None = "auto",
        render_mode: str | None = None,
    ) -> None:
        check_int("size", size, 5, 10)
        check_int("num_boxes", num_boxes, 1, min(4, size - 3))
        check_int("moves_per_turn", moves_per_turn, 1, 100)
        limit = turn_limit(max_turns, 2 * solution_bounds(size, num_boxes)[1] / moves_per_turn)
        tasks = GeneratedTasks(f"sokoban-{size}-{num_boxes}", SPLIT_SIZES, partial(generate, size, num_boxes))
        super().__init__(tasks, split=split, max_turns=limit, render_mode=render_mode)
        self.moves_per_turn, self.end_on_deadlock = moves_per_turn, end_on_deadlock
        self.success_reward, self.step_penalty = success_reward, step_penalty
        self.box_reward, self.invalid_penalty = box_reward, invalid_penalty
        self._plan: dict[tuple[Any, ...], list[str]] = {}

    def choose_task(self, options: Mapping[str, Any]) -> Task:
        """Return the level of ``options``, or see `TextEnv.choose_task`."""
        if "map" not in options:
            return super().choose_task(options)
        if "task" in options:
            raise UserError("give the reset option 'task' or 'map', not both.")
        return Task("map", {"map": parse_level(map_rows(options["map"], SYMBOLS + " -"))})

    def begin(self, task: Task) -> str:
        """See `TextEnv.begin`. The state is (player, boxes), as in `Level`."""
        self.state = self._level.start
        return (
            "Sokoban: push every box ($) onto a target (.). You (@) push a box by walking into it; you cannot pull, "
            "nor push two at once. # wall, _ floor, * box on target, + you on target.\n"
            f"{answer_format(self.moves_per_turn)}\n\n{self._level.draw(*self.state)}"
        )

    def reset_info(self) -> Mapping[str, Any]:
        """See `TextEnv.reset_info`."""
        return self._own_info(valid_action=True)

    def advance(self, action: str) -> Turn:
        """See `TextEnv.advance`."""
        level = self._level
        moves = parse_moves(action, self.moves_per_turn)
        if moves is None:
            text = f"That is no valid action. {answer_format(self.moves_per_turn)}\n\n{level.draw(*self.state)}"
            return Turn(text, 0.0 - self.invalid_penalty, info=self._own_info(valid_action=False))
        reward = 0.0
        for word in moves:
            before = self._num_on_target()
            self.state = level.move(word, *self.state)
            reward += self.box_reward * (self._num_on_target() - before) - self.step_penalty
            if self.state[1] == level.targets:
                info = self._own_info(valid_action=True)
                return Turn("Every box is on a target.", reward + self.success_reward, True, True, info)
        info = self._own_info(valid_action=True)
        return Turn(level.draw(*self.state), reward, self.end_on_deadlock and info["deadlock"], info=info)

    def expert(self) -> str:
        """See `TextEnv.expert`."""
        level, rows = self._level, self.task.data["map"]
        if (*rows, self.state) not in self._plan:
            moves = solve(level, *self.state)
            self._plan, state = {}, self.state
            for position, word in enumerate(moves):
                self._plan[(*rows, state)] = moves[position : position + self.moves_per_turn]
                state = level.move(word, *state)
            if not moves:
                raise UserError("every box is on a target: no move is left to make.")
        return write_moves(self._plan[(*rows, self.state)])

    def random_action(self, rng: np.random.Generator) -> str:
        """See `TextEnv.random_action`."""
        return random_moves(rng, self.moves_per_turn)

    @property
    def _level(self) -> Level:
        return Level.of(tuple(self.task.data["map"]))

    def _num_on_target(self) -> int:
        on_target: int = self.state[1] & self._level.targets
        return on_target.bit_count()

    def _own_info(self, *, valid_action: bool) -> dict[str, Any]:
        return {
            "valid_action": valid_action,
            "boxes_on_target": self._num_on_target(),
            "deadlock": self._level.deadlocked(self.state[1]),
        }
