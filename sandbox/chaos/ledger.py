"""The ledger: what was promised, how often it was put to the test, and each time that it was broken."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

PROMISES = {
    "deadline": "every call ends by its deadline",
    "typed": "a call that fails raises an error that says what kind of failure it is",
    "answer": "a result is the right one, whole",
    "one per key": "a key leads to one sandbox, with one container",
    "one life": "a sandbox never has two running containers",
    "told": "a restart is never silent",
    "settles": "after a fault a sandbox is usable again, or has failed and says so",
    "restored": "a restored sandbox has its checkpointed files",
    "gone": "what is deleted, or whose lease has ended, is gone",
    "comes back": "a killed manager starts again, and none ends by itself",
    "alive": "after the storm the manager makes usable sandboxes",
    "orderly end": "the manager ends when it is told to",
    "no surprise": "no error comes up in the manager that nobody thought of",
    "nothing left": "no container, process, volume, network, image or file descriptor more than before",
}


@dataclass(frozen=True, slots=True)
class Breach:
    """A promise that was broken in a cycle (-1: in none)."""

    promise: str
    cycle: int
    text: str

    def __str__(self) -> str:
        """Return it as one line."""
        where = f"cycle {self.cycle}" if self.cycle >= 0 else "the end"
        return f"{where}: BROKEN {self.promise!r} ({PROMISES[self.promise]}): {self.text}"


@dataclass
class Ledger:
    """The books of one run.

    Attributes:
        kept: how often each promise was put to the test and held.
        breaches: when it did not.
        outcomes: of creations and injuries, counted: "usable", or the name of the error.
        recoveries_s: from an injury that ended a life until the sandbox was usable again.
    """

    kept: Counter[str] = field(default_factory=Counter)
    breaches: list[Breach] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    recoveries_s: list[float] = field(default_factory=list)

    def check(self, promise: str, cycle: int, holds: bool, text: str) -> bool:
        """Write down whether a promise held; ``text`` says what happened where it did not."""
        if holds:
            self.kept[promise] += 1
        else:
            self.breaches.append(Breach(promise, cycle, text))
        return holds

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-able data."""
        return {
            "kept": dict(self.kept),
            "broken": [{"promise": it.promise, "cycle": it.cycle, "text": it.text} for it in self.breaches],
            "outcomes": dict(self.outcomes),
            "recovery_s": self._recovery(),
        }

    def _recovery(self) -> dict[str, float]:
        if not self.recoveries_s:
            return {}
        return {"median": round(statistics.median(self.recoveries_s), 2), "max": round(max(self.recoveries_s), 2)}
