"""Countdown: reach a target from given numbers with + - * / and parentheses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rollcage.envs.answers import outside_thinking
from rollcage.envs.core import TextEnv, Turn
from rollcage.envs.countdown.arithmetic import evaluate, format_value, parse
from rollcage.envs.countdown.solver import random_expression, solve
from rollcage.envs.countdown.tasks import MAX_GENERATED, file_tasks, generated_tasks, problem_from_row
from rollcage.envs.data import Data
from rollcage.envs.tasks import Task
from rollcage.errors import UserError

_OPEN, _CLOSE = "<answer>", "</answer>"
OUTCOMES = ("right", "wrong_value", "wrong_numbers", "division_by_zero", "malformed", "no_answer")
_INFO: Mapping[str | None, Mapping[str, Any]] = {outcome: {"outcome": outcome} for outcome in (None, *OUTCOMES)}


class CountdownEnv(TextEnv):
    """Make the target from the numbers, using every number exactly once.

    ## Description
    A task is a few whole numbers and a target. The agent answers with an arithmetic expression that uses every number
    exactly once (as often as it is given), the operators + - * / and parentheses, and is worth exactly the target.
    Values are exact fractions: nothing is rounded. Tasks are procedural (solvable by construction, any number of them)
    or come from data files such as Countdown-Tasks-3to4.

    ## Action Space
    `UnicodeText`: any message. The answer stands after its last ``<answer>``, up to ``</answer>``; what is thinking
    (`rollcage.envs.answers`) does not count, nor does an answer whose tag is never closed. What an expression may look
    like is said in `rollcage.envs.countdown.arithmetic`; where it ends with ``= N``, N must be the target, too.

    ## Observation Space
    `UnicodeText`: first the problem, then a verdict on each answer: what it is worth, or which rule it broke.

    ## Rewards
    1 for a right answer, else 0; ``format_reward`` where the episode ends with an answer that is a well-formed
    expression but not right.

    ## Episode End
    Terminated after a right answer, or after ``max_attempts`` answers. A message without an answer is an attempt.

    ## Info
    ``outcome``: None after `reset`, then one of "right", "wrong_value", "wrong_numbers" (another set of numbers than
    the given one), "division_by_zero", "malformed" (not an expression), "no_answer" (no answer block). Where several
    apply, a malformed answer is called so before its numbers are looked at, and these before its value.

    ## Arguments
    - ``num_numbers``: how many numbers a procedural task has: 3 to 6, or a pair (low, high) of these.
    - ``data``: a file whose rows hold "target" and "nums" (or "numbers"), such as those of Countdown-Tasks-3to4, as
      JSON lines (.jsonl or .jsonl.xz), which becomes the split that ``split`` names; or a mapping {split: file}; or a
      folder of files named after their splits (``..._train.jsonl``, ``..._test.jsonl``). Replaces the procedural tasks.
    - ``split``: "train" (10,000,000 procedural tasks), "validation" or "test" (10,000 each); no problem of one split
      is a problem of another.
    - ``max_attempts``: answers an episode allows; after a wrong one the agent is told what was wrong.
    - ``format_reward``: see Rewards.
    - ``max_turns``, ``render_mode``: as in `TextEnv`.

    ``reset(options={"numbers": [3, 5, 10], "target": 80})`` sets a problem by hand: 1 to 8 integers of 0 to 999,999 and
    a target of at most nine digits, solvable or not. ``options={"task": "test/7"}`` picks a task by its id.

    ## Version History
    - v0: first version.
    """

    option_keys: ClassVar[tuple[str, ...]] = ("task", "numbers", "target")

    def __init__(
        self,
        *,
        num_numbers: int | Sequence[int] = 3,
        data: Data | None = None,
        split: str = "train",
        max_attempts: int = 1,
        format_reward: float = 0.0,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if max_attempts < 1:
            raise UserError(f"max_attempts must be at least 1, not {max_attempts}.")
        if not 0 <= format_reward < 1:
            raise UserError(
                f"format_reward must be at least 0 and below 1, the reward of a right answer, not {format_reward}."
            )
        tasks = generated_tasks(num_numbers) if data is None else file_tasks(data, split)
        super().__init__(tasks, split=split, max_turns=max_turns, render_mode=render_mode)
        self.max_attempts, self.format_reward = max_attempts, float(format_reward)

    def choose_task(self, options: Mapping[str, Any]) -> Task:
        """See `TextEnv.choose_task`; "numbers" and "target" together set the problem."""
        if "numbers" not in options and "target" not in options:
            return super().choose_task(options)
        if "task" in options:
            raise UserError("reset options: give either 'task', or 'numbers' and 'target'.")
        try:
            problem = problem_from_row(options)
        except ValueError as error:
            raise UserError(f"reset options: {error}.") from None
        return Task(f"custom/{','.join(map(str, problem['numbers']))}={problem['target']}", problem)

    def begin(self, task: Task) -> str:
        """Pose the problem; there is no state beyond the number of turns."""
        numbers = str(task.data["numbers"])[1:-1]  # of a list: "3, 5, 10"
        return (
            f"Make {task.data['target']} from the numbers {numbers}: use every number exactly once, with + - * / and "
            "parentheses. Think step by step, then give the expression in <answer> </answer> tags."
        )

    def reset_info(self) -> Mapping[str, Any]:
        """No outcome yet."""
        return _INFO[None]

    def advance(self, action: str) -> Turn:
        """Judge one attempt."""
        problem = self.task.data
        outcome, verdict = judge(action, problem["numbers"], problem["target"])
        if outcome == "right":
            return Turn(verdict, 1.0, True, True, _INFO[outcome])
        left = self.max_attempts - self.num_turns
        if left > 0:
            return Turn(f"{verdict} Attempts left: {left}.", 0.0, False, False, _INFO[outcome])
        well_formed = outcome not in ("malformed", "no_answer")
        return Turn(verdict, self.format_reward if well_formed else 0.0, True, False, _INFO[outcome])

    def expert(self) -> str:
        """Return a right answer, found by complete search.

        Raises:
            UserError: the problem has no solution, or more than 6 numbers, so that to find none could take very long;
                only problems set by hand or read from files may be so.
        """
        numbers, target = self.task.data["numbers"], self.task.data["target"]
        if len(numbers) > MAX_GENERATED:
            raise UserError(f"task {self.task.id!r}: the expert searches up to {MAX_GENERATED} numbers only.")
        expression = solve(numbers, target)
        if expression is None:
            raise UserError(f"task {self.task.id!r}: {target} cannot be made from {numbers}.")
        return f"{_OPEN}{expression}{_CLOSE}"

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a well-formed answer that uses every number once, otherwise random."""
        return f"{_OPEN}{random_expression(self.task.data['numbers'], rng)}{_CLOSE}"


def judge(message: str, numbers: Sequence[int], target: int) -> tuple[str, str]:
    """Return the outcome of a message (one of `OUTCOMES`) and a sentence that says why. Never raises; linear time."""
    text = outside_thinking(message)
    begin = text.rfind(_OPEN)
    end = text.find(_CLOSE, begin)
    if begin < 0 or end < 0:
        return "no_answer", "No answer: give an expression in <answer> </answer> tags."
    expression = parse(text[begin + len(_OPEN) : end])
    if expression is None:
        return "malformed", "Malformed: the answer must be one expression of whole numbers, + - * / and parentheses."
    if sorted(expression.numbers) != sorted(numbers):  # asked before anything is computed: others may be many and huge
        return "wrong_numbers", f"Wrong numbers: use each of {', '.join(map(str, numbers))} exactly once, and no other."
    value = evaluate(expression)
    if value is None:
        return "division_by_zero", "Wrong: the expression divides by zero."
    numerator, denominator = value
    if numerator != target * denominator:
        return "wrong_value", f"Wrong: the expression is {format_value(numerator, denominator)}, not {target}."
    if expression.claim is not None and expression.claim != target:
        return "wrong_value", f"Wrong: the expression is {target}, not what follows its equals sign."
    return "right", f"Right: the expression is {target}."
