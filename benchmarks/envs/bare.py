"""The measure of what a suite costs: a Gymnasium environment with nothing but rows and a safe, exact scorer.

Written as someone would who needs Countdown and no suite: a small parser by recursive descent, exact integer
fractions, a limit on the length. It is registered without Gymnasium's wrappers, which is its fastest way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import gymnasium
from gymnasium.spaces import Text

ENV_ID = "rollcage-bench/Bare-v0"

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ALLOWED = re.compile(r"[0-9\s+\-*/()]+")
_TOKEN = re.compile(r"[0-9]+|[-+*/()]")
_MAX_LENGTH = 200


def score(message: str, numbers: Sequence[int], target: int) -> float:
    """Return 1 for a right answer, else 0."""
    answers = _ANSWER.findall(message)
    if not answers or len(answers[-1]) > _MAX_LENGTH or not _ALLOWED.fullmatch(answers[-1]):
        return 0.0
    tokens = _TOKEN.findall(answers[-1])
    if sorted(int(token) for token in tokens if token.isdigit()) != sorted(numbers):
        return 0.0
    parser = _Parser(tokens)
    try:
        numerator, denominator = parser.sum()
    except (ValueError, ZeroDivisionError):
        return 0.0
    return float(parser.at_end() and numerator == target * denominator)


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = [*tokens, ""]
        self.place = 0

    def at_end(self) -> bool:
        return self.tokens[self.place] == ""

    def operand(self) -> tuple[int, int]:
        token = self.tokens[self.place]
        self.place += 1
        if token != "(":
            return int(token), 1
        value = self.sum()
        if self.tokens[self.place] != ")":
            raise ValueError("expected )")
        self.place += 1
        return value

    def product(self) -> tuple[int, int]:
        a, b = self.operand()
        while (operator := self.tokens[self.place]) in ("*", "/"):
            self.place += 1
            c, d = self.operand()
            if operator == "*":
                a, b = a * c, b * d
            elif c == 0:
                raise ZeroDivisionError
            else:
                a, b = a * d, b * c
        return a, b

    def sum(self) -> tuple[int, int]:
        a, b = self.product()
        while (operator := self.tokens[self.place]) in ("+", "-"):
            self.place += 1
            c, d = self.product()
            a, b = (a * d + c * b if operator == "+" else a * d - c * b), b * d
        return a, b


class BareEnv(gymnasium.Env[str, str]):
    """A random row, one answer, reward 0 or 1."""

    observation_space = Text(1000)
    action_space = Text(1000)

    def __init__(self, rows: Sequence[tuple[list[int], int]]) -> None:
        self.rows = rows
        self.row = rows[0]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Pose a random row."""
        super().reset(seed=seed)
        index = int(self.np_random.integers(len(self.rows)))
        self.row = numbers, target = self.rows[index]
        return f"Make {target} from {numbers}. Answer in <answer> </answer> tags.", {"index": index}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score the answer."""
        return "", score(action, *self.row), True, False, {}


def make_bare(rows: Sequence[tuple[list[int], int]]) -> gymnasium.Env[str, str]:
    """Register the environment where that has not been done, and make it."""
    if ENV_ID not in gymnasium.registry:
        gymnasium.register(ENV_ID, f"{__name__}:BareEnv", order_enforce=False, disable_env_checker=True)
    env: gymnasium.Env[str, str] = gymnasium.make(ENV_ID, rows=rows)
    return env
