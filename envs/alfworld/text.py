"""The narrator: says what the grammar of a game makes of a state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rollcage.errors import UserError

Binding = Mapping[str, str]
"""Variable name to the id of the entity it stands for."""

_ARTICLES = {"definite": "the", "indefinite": "a"}


class Facts(NamedTuple):
    """What the narrator goes by: sets of facts as bits, in the order of the game's ``facts``.

    Attributes:
        shown: these are so; with the bit after the last fact's, which stands for all that never change.
        denied: these were said not to be so (``not_...`` in a grammar): at first none.
    """

    shown: int
    denied: int


class Narrator:
    """Speaks for one game.

    Args:
        game: as `rollcage.envs.alfworld.translate.translate` returns it; its operators are not looked at.
    """

    def __init__(self, game: Mapping[str, Any]) -> None:
        self._entities: Mapping[str, Sequence[str]] = game["entities"]
        self._rules: Mapping[str, Sequence[Any]] = game["grammar"]["rules"]
        self._always = 1 << len(game["facts"])
        facts: dict[str, list[tuple[tuple[str, ...], int]]] = {name: [] for name in game["grammar"]["predicates"]}
        for bit, (predicate, ids) in enumerate(game["facts"]):
            if predicate in facts:
                facts[predicate].append((tuple(ids), 1 << bit))
        self._change = {name for name, found in facts.items() if found}
        for predicate, ids in game["fixed"]:
            facts[predicate].append((tuple(ids), self._always))
        self._facts = {name: sorted(found) for name, found in facts.items()}

    def say(self, symbols: Sequence[Any], binding: Binding, facts: Facts) -> str:
        """Return the text that ``symbols`` make.

        Raises:
            UserError: the grammar has no rule that applies, or a variable of it stands for nothing.
        """
        return "".join(self._say(symbol, binding, facts) for symbol in symbols)

    def say_always(self, symbols: Sequence[Any], binding: Binding) -> str:
        """Return the text that ``symbols`` make in every state.

        Raises:
            UserError: it is not the same in every state, and see `say`.
        """
        for kind, *rest in symbols:
            asked = {predicate.removeprefix("not_") for predicate, *_ in (rest[1] or ())} if len(rest) > 1 else set()
            if kind == "rule" or asked & self._change:
                raise UserError("the game's grammar has commands that are called differently from state to state.")
        return self.say(symbols, binding, Facts(self._always, 0))

    def _say(self, symbol: Sequence[Any], binding: Binding, facts: Facts) -> str:
        match symbol:
            case ["text", text]:
                return str(text)
            case ["value", expression]:
                return self._value(expression, binding)
            case ["rule", name]:
                return self._rule(name, binding, facts)
            case [kind, inner, query]:
                items = [self._say(inner, found, facts) for found in self._query(query, binding, facts)]
                return "".join(items) if kind == "each" else self._list(items, binding, facts)
        raise UserError(f"unknown symbol {symbol!r:.80} in a translated game.")

    def _rule(self, name: str, binding: Binding, facts: Facts) -> str:
        for query, symbols in self._rules.get(name, ()):
            if next(self._query(query, binding, facts), None) is not None:
                return self.say(symbols, binding, facts)
        raise UserError(f"the game's grammar has no rule for {name!r} that applies.")

    def _list(self, items: Sequence[str], binding: Binding, facts: Facts) -> str:
        if not items:
            return self._rule("list_empty", binding, facts)
        *first, last = items
        if not first:
            return last
        joined = self._rule("list_separator", binding, facts).join(first)
        return joined + self._rule("list_last_separator", binding, facts) + last

    def _value(self, expression: Sequence[Any], binding: Binding) -> str:
        match expression:
            case ["constant", text]:
                return str(text)
            case ["+", left, right]:
                return self._value(left, binding) + self._value(right, binding)
            case ["or", left, right]:
                return self._value(left, binding) or self._value(right, binding)
            case ["of", variable, attribute] if variable in binding:
                entity = binding[variable]
                kind, name = self._entities.get(entity, ("", ""))
                return {"id": entity, "name": name, "type": kind, **_ARTICLES}[attribute]
        raise UserError(f"the game's grammar speaks of {expression[1]!r}, which stands for nothing there.")

    def _query(self, query: Sequence[Any] | None, binding: Binding, facts: Facts) -> Iterator[Binding]:
        """Yield every way to make all conditions hold; no two variables stand for the same entity."""
        if not query:
            yield binding
            return
        (predicate, variables, types), *rest = query
        name = predicate.removeprefix("not_")
        holding = facts.shown if name == predicate else facts.denied
        taken = set(binding.values())
        for ids, bit in self._facts[name]:
            if not bit & holding:
                continue
            found = dict(binding)
            used = set(taken)
            for variable, kind, entity in zip(variables, types, ids, strict=False):
                bound = found.get(variable)
                if bound is None:
                    if entity in used or kind not in ("object", self._entities[entity][0]):  # "object": of any type
                        break
                    found[variable] = entity
                    used.add(entity)
                elif bound != entity:
                    break
            else:
                yield from self._query(rest, found, facts)
