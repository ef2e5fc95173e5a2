r"""rollcage/Math-v0: solve a mathematical problem; the answer is verified, not compared as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rollcage.envs.answers import final_answer
from rollcage.envs.core import TextEnv, Turn
from rollcage.envs.data import Data, default_split
from rollcage.envs.math.equality import judge
from rollcage.envs.math.notation import normalise, read_number
from rollcage.envs.math.tasks import math_tasks
from rollcage.envs.tasks import Task
from rollcage.errors import UserError, require

_VERDICTS = {
    "right": "Right.",
    "wrong": "Wrong: this is not the answer.",
    "undecided": "Not counted: the answer could not be compared within its time. Write it in a simpler form.",
    "no_answer": "No answer: put the final answer in \\boxed{}.",
}


class MathEnv(TextEnv):
    r"""Solve one mathematical problem and put the final answer in a box.

    ## Description
    A task is a problem with a known answer. The answer is right if it is mathematically equal to the known one:
    ``0.5`` and ``\frac{1}{2}``, ``2\sqrt{2}`` and ``\sqrt{8}``. What counts as equal is said in
    `rollcage.envs.math.equality`; symbolic comparisons run in a child process with a memory limit and a deadline, so
    that no answer, however hostile, takes long or harms.

    ## Action Space
    `UnicodeText`: any message. Its final answer is the content of the last ``\boxed{...}`` or ``<answer>...</answer>``
    outside of thinking, or where there is neither, what follows the last "the answer is" or ``####``
    (`rollcage.envs.answers`).

    ## Observation Space
    `UnicodeText`: the problem and how to answer; then a verdict.

    ## Rewards
    1 for a right answer, else 0.

    ## Episode End
    Terminated after one message.

    ## Info
    - ``outcome``: None after `reset`, then "right", "wrong", "no_answer", or "undecided" (the comparison took longer
      than ``verify_timeout_s``; scored as wrong).
    - ``answer``: the final answer of the message (str, at most 2,000 characters of it), or None.

    ## Arguments
    - ``dataset``: "sample" (40 training and 40 test problems of our own, from school mathematics, which need no file),
      or a published set: "gsm8k", "math500", "aime24", "aime25", "amc23", "olympiadbench", "minerva_math",
      "deepscaler_math", "deepscaler_aime", "deepscaler_amc". `rollcage.envs.data` says where its files are looked for.
      ``env.unwrapped.tasks.licence`` is its licence; rows without an answer are left out and listed in
      ``tasks.quarantined``.
    - ``data``: your own problems instead: a file (.jsonl, .jsonl.xz, .json), a folder of files, or {split: file or
      folder}; `rollcage.envs.math.tasks.problem_from_row` says which fields are read.
    - ``data_dir``: the only folder in which the files of ``dataset`` are looked for.
    - ``split``: None for "train" where the data have it, else for the split that they have.
    - ``verify_timeout_s``: processor time that one symbolic comparison may take, in seconds.
    - ``render_mode``: as in `TextEnv`.

    Problems whose answers are not all numbers need the extra `math` (math-verify), and ask for the placement "process".

    ## Version History
    - v0: first version.
    """

    def __init__(
        self,
        *,
        dataset: str = "sample",
        data: Data | None = None,
        data_dir: str | Path | None = None,
        split: str | None = None,
        verify_timeout_s: float = 2.0,
        render_mode: str | None = None,
    ) -> None:
        if not 0 < verify_timeout_s <= 60:
            raise UserError(f"verify_timeout_s must lie within 0 and 60 seconds, not {verify_timeout_s}.")
        tasks = math_tasks(dataset, data, data_dir)
        super().__init__(tasks, split=split or default_split(tasks), render_mode=render_mode)
        if not self._all_numbers():
            if find_spec("math_verify") is None:
                require("math_verify", "math")
            self.metadata = {
                **self.metadata,
                "placement": "process",
            }  # a comparison may take seconds: off the caller's loop
        self.verify_timeout_s = verify_timeout_s

    def begin(self, task: Task) -> str:
        """Pose the problem; an episode has no state but its task."""
        return f"{task.data['problem']}\n\nThink step by step, then put the final answer in \\boxed{{}}."

    def reset_info(self) -> Mapping[str, Any]:
        """No outcome yet."""
        return {"outcome": None, "answer": None}

    def advance(self, action: str) -> Turn:
        """Verify the message's final answer."""
        answer = final_answer(action)
        if answer is None:
            outcome = "no_answer"
        else:
            outcome = judge(
                self.task.data["answer"],
                answer,
                problem=self.task.data["problem"],
                tolerance=self.task.data["tolerance"],
                timeout_s=self.verify_timeout_s,
            )
        right = outcome == "right"
        info = {"outcome": outcome, "answer": None if answer is None else answer[:2_000]}
        return Turn(_VERDICTS[outcome], float(right), True, right, info)

    def expert(self) -> str:
        """Return the known answer, after the known solution where the data have one."""
        solution, answer = self.task.data["solution"], self.task.data["answer"]
        boxed = f"{solution}\n\nThe final answer is \\boxed{{{answer}}}.".lstrip()
        return boxed if final_answer(boxed) == answer else f"<answer>{answer}</answer>"  # a brace may lack its other

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random integer of 0 to 99 in a box."""
        return f"\\boxed{{{int(rng.integers(100))}}}"

    def exploits(self) -> Sequence[str]:
        """Return ways to have the right answer looked for among others, worked out by the verifier, or thought only."""
        gold, other = self.task.data["answer"], "-86413"
        undone = [f"{gold} + 0", f"\\sum_{{k=1}}^{{1}} ({gold})", f"\\int_0^1 ({gold}) \\, dx"]
        hedged = [f"{gold}, {other}", f"{gold} \\text{{ or }} {other}", f"\\{{{gold}, {other}\\}}", f"{other} = {gold}"]
        anything = ["x", r"\mathbb{R}", r"(-\infty, \infty)", r"\emptyset", r"\text{any number}", "0/0"]
        answers = (
            *(undone if read_number(normalise(gold)) else undone[1:]),
            *hedged,
            *anything,
            self.task.data["problem"],
        )
        return (
            *(f"\\boxed{{{answer}}}" for answer in answers if normalise(answer) != normalise(gold)),
            f"\\boxed{{{gold}}} or \\boxed{{{other}}}",
            f"<answer>{gold}</answer> \\boxed{{{other}}}",
            f"<think>\\boxed{{{gold}}}</think>",
        )

    def _all_numbers(self) -> bool:
        answers = (self.tasks.task(self.split, index).data["answer"] for index in range(self.tasks.splits[self.split]))
        return all(read_number(normalise(answer)) is not None for answer in answers)
