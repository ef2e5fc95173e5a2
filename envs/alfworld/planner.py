"""Finds a way to win from any state of a game.

Best-first search on the length of relaxed plans (Hoffmann and Nebel, "The FF planning system", 2001): plans for the
game in which whatever was once true stays true, and whatever was once false stays false, beside its opposite.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import count

from rollcage.envs.alfworld.engine import Game, Operator, State
from rollcage.errors import UserError

MAX_STATES = 1_000
"""So many states are looked at, some milliseconds each; the official games take tens."""


def find_plan(game: Game, state: State, max_states: int = MAX_STATES) -> list[str]:
    """Return commands that win from ``state``: few, not always the fewest; none where it is won.

    Raises:
        UserError: no way was found among ``max_states`` states.
    """
    order = count()
    seen = {state.true}
    queue: list[tuple[int, int, int, tuple[str, ...]]] = [(0, next(order), state.true, ())]
    for num_seen in range(max_states):
        if not queue:
            raise UserError(f"the game cannot be won from here, as far as a search of {num_seen} states tells.")
        _, _, true, commands = heapq.heappop(queue)
        if any(true & needed == needed and not true & forbidden for needed, forbidden in game.goals):
            return list(commands)
        relaxed = relaxed_plan(game, true)
        if relaxed is None:
            continue  # a dead end
        for operator in relaxed:
            if operator.allowed(true) and (after := operator.after(true)) not in seen:
                seen.add(after)
                heapq.heappush(queue, (len(relaxed), next(order), after, (*commands, operator.command)))
    raise UserError(f"no way to win from here was found among {max_states} states.")


def relaxed_plan(game: Game, true: int) -> list[Operator] | None:
    """Return the operators of a relaxed plan from the facts ``true``, the last ones first; None where there is none."""
    false = ((1 << game.num_facts) - 1) & ~true
    makes_true: dict[int, Operator] = {}
    makes_false: dict[int, Operator] = {}
    left: Sequence[Operator] = game.operators
    while (goal := _reached(game, true, false)) is None:
        now_true, now_false = true, false
        waiting = []
        for operator in left:
            if operator.needed & ~true or operator.forbidden & ~false:
                waiting.append(operator)
                continue
            for bit in _bits(operator.said & ~now_true):
                makes_true[bit] = operator
            for bit in _bits(operator.unsaid & ~now_false):
                makes_false[bit] = operator
            now_true |= operator.said
            now_false |= operator.unsaid
        if (now_true, now_false) == (true, false):
            return None
        true, false, left = now_true, now_false, waiting
    wanted = [(makes_true, goal[0]), (makes_false, goal[1])]
    chosen: dict[int, Operator] = {}
    while wanted:
        makers, bits = wanted.pop()
        for bit in _bits(bits):
            maker = makers.get(bit)  # None: it was so from the start
            if maker is not None and id(maker) not in chosen:
                chosen[id(maker)] = maker
                wanted += [(makes_true, maker.needed), (makes_false, maker.forbidden)]
    return list(chosen.values())


def _reached(game: Game, true: int, false: int) -> tuple[int, int] | None:
    return next((goal for goal in game.goals if not goal[0] & ~true and not goal[1] & ~false), None)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit
