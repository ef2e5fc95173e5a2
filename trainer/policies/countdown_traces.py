"""Demonstrations for the small policy: searches for a Countdown solution, written out, that often stop too early."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from rollcage.envs.countdown.env import CountdownEnv

MAX_PRODUCT = 500
"""The largest product of a step. Larger ones are hard to calculate, and 999 of 1,000 tasks have a solution without."""
SHARE_OF_FOUR = 0.15
"""Share of the demonstrations that have four numbers; the rest have three."""


@dataclass(frozen=True, slots=True)
class Value:
    """A number that an attempt holds, and the expression that made it."""

    number: int
    expression: str
    is_compound: bool = False

    def as_operand(self) -> str:
        """Return the expression as it stands inside a larger one."""
        return f"({self.expression})" if self.is_compound else self.expression


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way to use every number once.

    Attributes:
        steps: the steps as text, ``36-7=29``, one fewer than there are numbers.
        expression: all steps as one expression.
        result: its value.
    """

    steps: tuple[str, ...]
    expression: str
    result: int


@dataclass(frozen=True, slots=True)
class Demonstrator:
    """Writes demonstrations that are right in every detail, and imperfect in judgement.

    A demonstration tries one attempt after another, none twice, and compares each with the target. Every step is right
    and every verdict is true, but hardly any attempt is aimed, and after a failing one the demonstrator often loses
    patience and answers with it all the same. So a model taught on demonstrations can calculate, search and judge, and
    yet aims badly and gives up early: what reinforcement learning can mend.

    Attributes:
        insight: probability that an attempt is a true solution instead of a random attempt.
        give_up: probability to answer with the first attempt though it failed; it falls with the number of attempts
            (half of it after the second one, a third after the third), so that long searches are seen as well.
        max_steps: a demonstration gives up before it would write more steps than this.
    """

    insight: float = 0.03
    give_up: float = 0.65
    max_steps: int = 12

    def demonstrate(self, numbers: Sequence[int], target: int, rng: random.Random) -> str:
        """Return the message that a demonstration answers a task with."""
        start = [Value(number, str(number)) for number in numbers]
        max_attempts = max(1, self.max_steps // (len(numbers) - 1))
        tried: dict[tuple[str, ...], str] = {}  # steps -> line, in the order of the attempts
        while True:
            attempt = self._pick(start, target, rng)
            while attempt.steps in tried:
                attempt = self._pick(start, target, rng)
            is_right = attempt.result == target
            tried[attempt.steps] = f"{', '.join(attempt.steps)} {'yes' if is_right else 'no'}\n"
            if is_right or len(tried) == max_attempts or rng.random() < self.give_up / len(tried):
                return f"{''.join(tried.values())}<answer>{attempt.expression}</answer>"

    def _pick(self, start: Sequence[Value], target: int, rng: random.Random) -> Attempt:
        solution = find_solution(start, target, rng) if rng.random() < self.insight else None
        return solution or random_attempt(start, rng)


def demonstrations(seed: int, demonstrator: Demonstrator = Demonstrator()) -> Iterator[tuple[str, ...]]:
    """Yield prompts of `rollcage/Countdown-v0`'s training tasks, each with the message that demonstrates an answer."""
    rng = random.Random(seed)
    envs = {num_numbers: CountdownEnv(num_numbers=num_numbers) for num_numbers in (3, 4)}
    for index in count(rng.randrange(1 << 30)):
        env = envs[4 if rng.random() < SHARE_OF_FOUR else 3]
        task = env.tasks.task("train", index % env.tasks.splits["train"])
        yield env.begin(task), demonstrator.demonstrate(task.data["numbers"], task.data["target"], rng)


def moves(values: Sequence[Value]) -> Iterator[tuple[int, int, str, int]]:
    """Yield every step that can be taken: positions of the larger and the smaller value, operator, result.

    Only integers of at least 1, and products of at most `MAX_PRODUCT`: mental arithmetic.
    """
    for i, a in enumerate(values):
        for j, b in enumerate(values):
            x, y = a.number, b.number
            if i == j or x < y or (x == y and i > j):
                continue
            yield i, j, "+", x + y
            if x != y:
                yield i, j, "-", x - y
            if x * y <= MAX_PRODUCT:
                yield i, j, "*", x * y
            if x % y == 0:
                yield i, j, "/", x // y


def take(values: Sequence[Value], move: tuple[int, int, str, int]) -> tuple[list[Value], str]:
    """Return the values after ``move``, and the step as text."""
    i, j, operator, result = move
    a, b = values[i], values[j]
    expression = f"{a.as_operand()}{operator}{b.as_operand()}"
    rest = [value for k, value in enumerate(values) if k not in (i, j)]
    return [*rest, Value(result, expression, True)], f"{a.number}{operator}{b.number}={result}"


def find_solution(values: Sequence[Value], target: int, rng: random.Random) -> Attempt | None:
    """Return a random solution, or None where steps over positive integers lead to none."""
    options = list(moves(values))
    if len(values) == 2:
        options = [move for move in options if move[3] == target]
    rng.shuffle(options)
    for move in options:
        rest, step = take(values, move)
        if len(rest) == 1:
            return Attempt((step,), rest[0].expression, rest[0].number)
        if found := find_solution(rest, target, rng):
            return Attempt((step, *found.steps), found.expression, found.result)
    return None


def random_attempt(values: Sequence[Value], rng: random.Random) -> Attempt:
    """Return random steps."""
    steps: list[str] = []
    while len(values) > 1:
        values, step = take(values, rng.choice(list(moves(values))))
        steps.append(step)
    return Attempt(tuple(steps), values[0].expression, values[0].number)
