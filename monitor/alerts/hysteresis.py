"""The state of every rule over time: it fires once, and is over once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rollcage.monitor.alerts.rules import RULES, Rule
from rollcage.monitor.alerts.window import Window


@dataclass(frozen=True, slots=True)
class Change:
    """A rule that begins or ends to fire.

    Attributes:
        rule: which.
        is_firing: it begins; else it is over.
        value: what was measured.
    """

    rule: Rule
    is_firing: bool
    value: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields of its event."""
        over = "over: " * (not self.is_firing)
        return {
            "rule": self.rule.name,
            "state": "firing" if self.is_firing else "resolved",
            "severity": self.rule.severity,
            "title": self.rule.title,
            "message": over + self.rule.message(self.value),
            "value": self.value,
            "threshold": self.rule.fire,
        }


class Hysteresis:
    """Which rules fire now.

    Args:
        rules: by name.
        firing: names of those that do already.
    """

    def __init__(self, rules: Mapping[str, Rule] = RULES, firing: set[str] | None = None) -> None:
        self._rules = rules
        self.firing = set(firing or ())

    def look(self, window: Window) -> list[Change]:
        """Return what has changed; nothing where a rule cannot be measured."""
        changes = []
        for rule in self._rules.values():
            value = rule.measure(window)
            if value is None:
                continue
            if rule.name not in self.firing and rule.fires(value):
                self.firing.add(rule.name)
                changes.append(Change(rule, True, value))
            elif rule.name in self.firing and rule.is_over(value):
                self.firing.discard(rule.name)
                changes.append(Change(rule, False, value))
        return changes
