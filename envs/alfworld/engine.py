"""Plays a translated game: which commands there are, what they do, and whether the goal is reached.

A state is three sets of facts as bits, so that it costs nothing to keep, copy and compare. Nothing is global: games may
be played in any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from rollcage.envs.alfworld.text import Facts, Narrator

NOTHING = "Nothing happens."


class State(NamedTuple):
    """The state of a game.

    Attributes:
        true: the facts that hold; a bit for each, in the order of the game's ``facts``.
        facts: what the narrator goes by.
    """

    true: int
    facts: Facts


class Conditional(NamedTuple):
    """An effect that takes place only where ``needed`` holds and ``forbidden`` does not."""

    needed: int
    forbidden: int
    bit: int
    becomes: bool


class Operator(NamedTuple):
    """One thing that can be done, on certain entities, under certain conditions. Sets of facts are bits.

    Attributes:
        command: what a player writes to do it.
        needed: these must hold.
        forbidden: these must not.
        added: become true.
        removed: become false.
        conditional: effects that depend on the state.
        said: becomes true as far as the narrator knows: it takes conditional effects for granted, as TextWorld's does.
        unsaid: becomes false as far as the narrator knows.
        feedback: what is said afterwards (symbols of the grammar).
        binding: the entities.
    """

    command: str
    needed: int
    forbidden: int
    added: int
    removed: int
    conditional: tuple[Conditional, ...]
    said: int
    unsaid: int
    feedback: Sequence[Any]
    binding: Mapping[str, str]

    def allowed(self, true: int) -> bool:
        """Whether it can be done where the facts ``true`` hold."""
        return true & self.needed == self.needed and not true & self.forbidden

    def after(self, true: int) -> int:
        """Return the facts that hold after it, where ``true`` did before."""
        result = (true & ~self.removed) | self.added
        for effect in self.conditional:
            if true & effect.needed == effect.needed and not true & effect.forbidden:
                result = result | effect.bit if effect.becomes else result & ~effect.bit
        return result


class Game:
    """A translated game; it never changes.

    Args:
        translated: what `rollcage.envs.alfworld.translate.translate` returned.

    Attributes:
        narrator: says what there is to say.
        num_facts: number of facts, and so of bits.
        start: the first state.
        operators: all that can ever be done; of several for one command, the first that is allowed counts.
        goals: (needed, forbidden) of every way to win.
        commands: state to every admissible command and what it does.
    """

    def __init__(self, translated: Mapping[str, Any]) -> None:
        self.narrator = Narrator(translated)
        self.num_facts = len(translated["facts"])
        true = _mask(translated["initial"])
        self.start = State(true, Facts(true | 1 << self.num_facts, 0))
        self.operators = [_operator(*entry) for entry in translated["operators"]]
        # Siblings of a group play the same game from the same start.
        self.commands: Callable[[State], Mapping[str, Operator]] = lru_cache(maxsize=64)(self._commands)
        self.goals = [(_mask(needed), _mask(forbidden)) for needed, forbidden in translated["goals"]]

    def introduction(self) -> str:
        """Return what is said at the start."""
        return self.narrator.say([["rule", "intro"]], {}, self.start.facts)

    def _commands(self, state: State) -> Mapping[str, Operator]:
        true, found = state.true, dict[str, Operator]()
        for operator in self.operators:
            if true & operator.needed == operator.needed and not true & operator.forbidden:
                found.setdefault(operator.command, operator)
        return found

    def play(self, state: State, operator: Operator) -> tuple[State, str]:
        """Return the state after ``operator`` and what is said."""
        shown, denied = state.facts
        facts = Facts((shown & ~operator.unsaid) | operator.said, (denied & ~operator.said) | operator.unsaid)
        after = State(operator.after(state.true), facts)
        return after, self.narrator.say(operator.feedback, operator.binding, facts)

    def won(self, state: State) -> bool:
        """Whether the goal is reached."""
        return any(state.true & needed == needed and not state.true & forbidden for needed, forbidden in self.goals)

    def progress(self, state: State) -> float:
        """Return the share of the goal's conditions that hold, 0 to 1, for the way to win of which most do."""
        return max(
            (
                1
                - ((needed & ~state.true).bit_count() + (forbidden & state.true).bit_count())
                / max(1, needed.bit_count() + forbidden.bit_count())
                for needed, forbidden in self.goals
            ),
            default=0.0,
        )


def _mask(bits: Iterable[int]) -> int:
    mask = 0
    for bit in bits:
        mask |= 1 << bit
    return mask


def _operator(
    command: str,
    feedback: Sequence[Any],
    binding: Mapping[str, str],
    needed: Sequence[int],
    forbidden: Sequence[int],
    effects: Sequence[tuple[int, bool, Sequence[int], Sequence[int]]],
) -> Operator:
    added = removed = said = unsaid = 0
    conditional = []
    for position, becomes, when, unless in effects:
        bit = 1 << position
        said, unsaid = (said | bit, unsaid & ~bit) if becomes else (said & ~bit, unsaid | bit)
        if when or unless:
            conditional.append(Conditional(_mask(when), _mask(unless), bit, becomes))
        elif becomes:
            added |= bit
        else:
            removed |= bit
    return Operator(
        command, _mask(needed), _mask(forbidden), added, removed, tuple(conditional), said, unsaid, feedback, binding
    )
