"""How the harness makes a call: timed, its error judged, its generation compared with the one that is known."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from rollcage.errors import RollcageError
from rollcage.sandbox.chaos.ledger import Ledger
from rollcage.sandbox.errors import InternalError, SandboxError, SandboxRestarted, Unauthorized
from rollcage.sandbox.types import ExecResult

T = TypeVar("T")
SLACK_S = 25.0
"""So much later than its own deadline a call may end at the latest: what the manager may need to find out why."""


class Answer(Generic[T]):
    """What came of a call: a value, or a typed error."""

    def __init__(self, value: T | None, error: Exception | None) -> None:
        self.value, self.error = value, error

    @property
    def ok(self) -> bool:
        """Whether there was no error."""
        return self.error is None

    def __str__(self) -> str:
        """Return the error's name, or "ok"."""
        return "ok" if self.error is None else type(self.error).__name__


class Caller:
    """Makes the calls of one cycle.

    Args:
        cycle: whose.
        ledger: where every call is written down.

    Attributes:
        generation: the life of its sandbox that was told of last; 0 where that is not known.
    """

    def __init__(self, cycle: int, ledger: Ledger) -> None:
        self.cycle, self.ledger, self.generation = cycle, ledger, 0

    async def __call__(self, what: str, call: Callable[[], Awaitable[T]], limit_s: float) -> Answer[T]:
        """Make a call that ends within ``limit_s`` by its own deadline, and say what came of it."""
        begin_s = asyncio.get_running_loop().time()
        answer: Answer[T]
        try:
            async with asyncio.timeout(limit_s + SLACK_S) as scope:
                answer = Answer(await call(), None)
        except RollcageError as error:
            if isinstance(error, SandboxRestarted):
                self.generation = max(self.generation, error.generation)
            is_typed = type(error) not in (
                RollcageError,
                SandboxError,
                InternalError,
                Unauthorized,
            )  # its token is right
            self.ledger.check("typed", self.cycle, is_typed, f"{what} raised {error!r}")
            answer = Answer(None, error)
        except TimeoutError as error:
            if not scope.expired():
                self.ledger.check("typed", self.cycle, False, f"{what} raised {error!r}")
            answer = Answer(None, error)
        except Exception as error:  # noqa: BLE001 - what it may raise is just what is examined
            self.ledger.check("typed", self.cycle, False, f"{what} raised {error!r}")
            answer = Answer(None, error)
        took_s = asyncio.get_running_loop().time() - begin_s
        late = f"{what} had not ended after {took_s:.1f} s; its own deadline was {limit_s:g} s"
        self.ledger.check("deadline", self.cycle, not scope.expired(), late)
        self.ledger.outcomes[f"{what.partition(' (')[0]}: {answer}"] += 1
        if isinstance(answer.value, ExecResult):
            known = f"{what} ran in life {answer.value.generation}; the last that was told of is {self.generation}"
            is_known = self.generation in (0, answer.value.generation)
            self.ledger.check("told", self.cycle, is_known, known)
        return answer
