"""A game's grammar, read by TextWorld and made into plain data: what the narrator says, and when."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from rollcage.errors import UserError, require

Symbol = list[Any]
"""["text", text], ["rule", name], ["value", expression], ["each", symbol, query] or ["list", symbol, query].

An expression is ["constant", text], ["of", variable, attribute], ["+", left, right] or ["or", left, right]. A query is
None, or [predicate, variables, their types] for each of its conditions.
"""

ATTRIBUTES = ("id", "name", "type", "definite", "indefinite")


@lru_cache(maxsize=8)  # the games of a data set share one; nobody may change what is returned
def compile_grammar(text: str) -> dict[str, Any]:
    """Return the grammar ``text`` (TextWorld's TWL2).

    Keys: ``actions`` (name to {"template", "feedback"}: symbols), ``rules`` (name to [query, symbols] in order of
    precedence), ``predicates`` (all that the queries ask about). Not for two threads at once.

    Raises:
        MissingExtra: TextWorld is not installed.
        UserError: it cannot be read, or says what this narrator cannot.
    """
    logic = require("textworld.envs.pddl.logic", "alfworld")
    failed = require("tatsu.exceptions", "alfworld").FailedParse
    compiler = _Compiler()
    try:
        parsed = logic.GameLogic(domain="", grammar=text)
        actions = {
            name: {"template": compiler.parse(action.template), "feedback": compiler.parse(action.feedback_rule)}
            for name, action in parsed.actions.items()
        }
        rules = {
            name: [[compiler.query(rule.condition), compiler.symbols(rule.rhs)] for rule in rules]
            for name, rules in parsed.grammar._rules.items()
        }
    except (failed, ValueError) as error:
        raise UserError(f"the game's grammar cannot be read ({' '.join(str(error).split())[:200]}).") from None
    return {"actions": actions, "rules": rules, "predicates": sorted(compiler.predicates)}


class _Compiler:
    def __init__(self) -> None:
        self._textgen = require("textworld.envs.pddl.textgen", "alfworld")
        self._rule = require("textworld.logic", "alfworld").Rule
        self._types: dict[str, str] = {}
        self.predicates: set[str] = set()

    def parse(self, text: str) -> list[Symbol]:
        return self.symbols(self._textgen._parse_and_convert(text, rule_name="symbols"))

    def symbols(self, parsed: Iterable[Any]) -> list[Symbol]:
        return [self._symbol(symbol) for symbol in parsed]

    def _symbol(self, symbol: Any) -> Symbol:
        match type(symbol).__name__:
            case "TerminalSymbol":
                return ["text", symbol.symbol]
            case "NonterminalSymbol":
                return ["rule", symbol.symbol]
            case "EvalSymbol":
                return ["value", self._expression(ast.parse(symbol.expression.strip(), mode="eval").body)]
            case "ConditionalSymbol":
                return ["each", self._symbol(symbol.expression), self.query(symbol.given)]
            case _:
                return ["list", *self._symbol(symbol.symbol)[1:]]

    def _expression(self, node: ast.expr) -> list[Any]:
        """Grammars hold Python expressions. They are data: these few forms are read, and nothing is ever executed."""
        match node:
            case ast.Constant(value=str(text)):
                return ["constant", text]
            case ast.Name(id=variable):
                return ["of", variable, "name"]
            case ast.Attribute(value=ast.Name(id=variable), attr=attribute) if attribute in ATTRIBUTES:
                return ["of", variable, attribute]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return ["+", self._expression(left), self._expression(right)]
            case ast.BoolOp(op=ast.Or(), values=[first, *rest]):
                return [
                    "or",
                    self._expression(first),
                    self._expression(rest[0] if len(rest) == 1 else ast.BoolOp(ast.Or(), rest)),
                ]
        raise ValueError(f"the expression {ast.unparse(node)!r} is none that games use")

    def query(self, text: str | None) -> list[list[Any]] | None:
        if not text:
            return None
        conditions = []
        for condition in self._rule.parse_conjunctive_query(text).preconditions:
            for variable in condition.parameters:
                if self._types.setdefault(variable.name, variable.type) != variable.type:
                    raise ValueError(f"the variable {variable.name!r} has two types")
            self.predicates.add(condition.name.removeprefix("not_"))
            conditions.append(
                [condition.name, [v.name for v in condition.parameters], [v.type for v in condition.parameters]]
            )
        return conditions
