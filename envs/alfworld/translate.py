"""Translates a game into ground facts and operators, as TextWorld does: PDDL by Fast Downward, names by alfworld.

The result is plain data (JSON's types), so that it can be kept on disk; `rollcage.envs.alfworld.engine` plays it. The
order of operators is the one in which TextWorld's library finds them, so that a command which fits several means the
same here and there.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from rollcage.envs.alfworld.grammar import compile_grammar
from rollcage.envs.alfworld.source import PLACEHOLDER
from rollcage.envs.alfworld.text import Narrator
from rollcage.errors import UserError, require

FORMAT = 1
"""Counted up whenever the translation changes: older ones on disk are then not used any more."""

_LOCK = threading.Lock()  # the translator keeps its options, and tatsu its parser's state, in globals


def translate(domain: str, problem: str, grammar: str, goal: str | None = None) -> dict[str, Any]:
    """Return the ground game.

    Args:
        domain: the rules, PDDL.
        problem: the game, PDDL.
        grammar: what is said, TWL2.
        goal: what takes the place of `PLACEHOLDER` in the grammar; None where it is complete.

    Keys: ``entities`` (id to [type, name as players see it]), ``facts`` ([predicate, ids] of every fact that can
    change; its position is its bit), ``fixed`` (those that cannot), ``initial`` (bits that are true at first),
    ``operators`` (see `_operators`), ``goals`` ([needed bits, forbidden bits] of every way to win), ``grammar``.

    Raises:
        MissingExtra: Fast Downward, TextWorld or alfworld is not installed.
        UserError: the domain, problem or grammar cannot be read, or uses what games do not: says what.
    """
    require("fast_downward", "alfworld")
    misc = require("alfworld.agents.utils.misc", "alfworld")
    with _LOCK:
        rules = compile_grammar(grammar)
        collecting = gc.isenabled()
        gc.disable()  # the translator makes hundreds of thousands of small objects and no garbage
        try:
            task, ground = _ground(domain, problem)
        finally:
            if collecting:
                gc.enable()
    if goal is not None:
        rules = json.loads(json.dumps(rules).replace(PLACEHOLDER, json.dumps(goal)[1:-1]))
    facts = [_fact(values[0]) for values in ground.variables.value_names]
    for values in ground.variables.value_names:
        if len(values) != 2 or not values[1].startswith("NegatedAtom "):
            raise UserError("a variable of the ground game has other values than true and false.")
    initial = [bit for bit, value in enumerate(ground.init.values) if value == 0]
    known = {(predicate, *ids) for predicate, ids in facts}
    fixed = [
        [atom.predicate, list(atom.args)]
        for atom in task.init
        if hasattr(atom, "predicate") and atom.predicate != "=" and (atom.predicate, *atom.args) not in known
    ]
    types = {entity.name: entity.type_name for entity in task.objects}
    seen = {entity for _, ids in [*fixed, *(facts[bit] for bit in initial)] for entity in ids}
    game: dict[str, Any] = {
        "entities": {entity: [types[entity], name] for entity, name in _names(misc, sorted(seen)).items()},
        "facts": facts,
        "fixed": [fact for fact in fixed if fact[0] in rules["predicates"]],
        "initial": initial,
        "goals": [[_bits(conditions, 0), _bits(conditions, 1)] for conditions in _goals(ground)],
        "grammar": rules,
    }
    game["operators"] = list(_operators(game, task, ground))
    return game


def _ground(domain: str, problem: str) -> tuple[Any, Any]:
    """Return the task as written and as ground, unpruned: every fact and operator stays, needed for the goal or not."""
    arguments, sys.argv = sys.argv, ["translate", "domain", "task"]  # its options are read when it is imported
    parts = ("options", "normalize", "translate", "pddl_parser")
    try:
        modules: list[Any] = [require(f"fast_downward.translate.{part}", "alfworld") for part in parts]
    finally:
        sys.argv = arguments
    options, normalize, translator, parser = modules
    options.filter_unimportant_vars = options.filter_unreachable_facts = False
    options.use_partial_encoding = options.add_implied_preconditions = False
    options.reorder_variables = True
    options.invariant_generation_max_candidates = 0  # leaves nothing but variables of two values
    for name, module in list(sys.modules.items()):
        if name.startswith("fast_downward.translate"):
            module.print = _silent  # type: ignore[attr-defined]  # stdout belongs to us, and to other threads
    try:
        lisp, parse = parser.lisp_parser.parse_nested_list, parser.parsing_functions.parse_task
        task = parse(lisp(domain.split("\n")), lisp(problem.split("\n")))
        normalize.normalize(task)
        ground = translator.pddl_to_sas(task)
    except (SystemExit, AssertionError, LookupError, ValueError, parser.lisp_parser.ParseError) as error:
        raise UserError(f"the game's rules cannot be read as PDDL ({error!r}).") from None
    if not ground.operators:
        raise UserError("the game cannot be solved: its goal is out of reach.")
    return task, ground


def _silent(*args: object, file: Any = None, **kwargs: Any) -> None:
    """Stand in for `print`, where the translator tells stdout of its progress."""
    if file is not None:
        sys.modules["builtins"].print(*args, file=file, **kwargs)


def _fact(value: str) -> list[Any]:
    """Read "Atom inreceptacle(a, b)"."""
    predicate, _, ids = value.removeprefix("Atom ").removesuffix(")").partition("(")
    return [predicate, ids.split(", ") if ids else []]


def _names(misc: ModuleType, ids: list[str]) -> dict[str, str]:
    """Return the name of every entity as players see it ("mug 1")."""
    naming = misc.Demangler(game_infos={entity: _Named(entity) for entity in ids})
    return {entity: naming.demangle_alfred_name(entity) for entity in ids}


class _Named:
    def __init__(self, entity: str) -> None:
        self.id = entity


def _bits(conditions: Iterable[tuple[int, int]], value: int) -> list[int]:
    return sorted({variable for variable, wanted in conditions if wanted == value})


def _goals(ground: Any) -> list[list[tuple[int, int]]]:
    """Return every way to win as (variable, value) conditions on facts that operators change."""
    rules: dict[tuple[int, int], list[list[tuple[int, int]]]] = {}
    for axiom in ground.axioms:
        rules.setdefault(tuple(axiom.effect), []).append(axiom.condition)
    derived = {variable for variable, _ in rules}

    def ways(conditions: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
        for position, condition in enumerate(conditions):
            if condition[0] in derived:
                if condition not in rules:
                    raise UserError("the game's goal asks for something not to be so that only follows from others.")
                for body in rules[condition]:
                    yield from ways([*conditions[:position], *body, *conditions[position + 1 :]])
                return
        yield conditions

    return list(ways([tuple(condition) for condition in ground.goal.pairs]))


def _operators(game: dict[str, Any], task: Any, ground: Any) -> Iterator[list[Any]]:
    """Yield [command, feedback symbols, binding, needed bits, forbidden bits, effects] in the library's order.

    ``binding`` is the parameter's name to the entity's id. An effect is [bit, becomes true, needed, forbidden]: the
    last two say when it takes place. What is done by the same operator on the same entities is listed once for each
    alternative of its conditions.
    """
    narrator = Narrator(game)
    parameters = {action.name: action.parameters for action in task.actions}
    derived = {axiom.effect[0] for axiom in ground.axioms}
    found = []
    for operator in ground.operators:
        name, *ids = operator.name[1:-1].split(" ")
        before = [(variable, old) for variable, old, _, _ in operator.pre_post if old >= 0]
        conditions = sorted({*map(tuple, operator.prevail), *before})
        if derived.intersection(variable for variable, _ in conditions):
            raise UserError(f"the game's action {name} depends on what only follows from other facts.")
        if name not in game["grammar"]["actions"]:
            raise UserError(f"the game's grammar has no action {name}: rules and grammar are of different versions.")
        binding = {
            parameter.name.removeprefix("?"): entity for parameter, entity in zip(parameters[name], ids, strict=False)
        }
        effects = [[bit, new == 0, _bits(when, 0), _bits(when, 1)] for bit, _, new, when in operator.pre_post]
        found.append((conditions, name, binding, effects))
    found.sort(key=lambda entry: entry[0])
    for conditions, name, binding, effects in found:
        action = game["grammar"]["actions"][name]
        command = narrator.say_always(action["template"], binding)
        yield [command, action["feedback"], binding, _bits(conditions, 0), _bits(conditions, 1), effects]
