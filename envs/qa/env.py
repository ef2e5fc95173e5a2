"""rollcage/QA-v0: questions of many domains, with options or short answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from string import ascii_uppercase
from typing import Any

import numpy as np

from rollcage.envs.answers import final_answer
from rollcage.envs.core import TextEnv, Turn
from rollcage.envs.data import Data, default_split
from rollcage.envs.qa.answers import chosen_option, same_short_answer
from rollcage.envs.qa.tasks import qa_tasks
from rollcage.envs.tasks import Task

_VERDICTS = {
    "right": "Right.",
    "wrong": "Wrong: this is not the answer.",
    "malformed": "Not counted: the answer must be one of the letters, and only one.",
    "no_answer": "No answer: give it in <answer> </answer> tags.",
}
_REFERS_TO_OTHERS = re.compile(r"\b(?:above|below|both|neither|either|all of|none of|[A-J] (?:and|or) [A-J]|I{1,3})\b")


class QAEnv(TextEnv):
    r"""Answer one question: choose an option, or give a short answer.

    ## Description
    Questions of many domains (law, medicine, physics, logic, reading, ...), in the manner of multi-domain reinforcement
    learning such as Nemotron-CrossThink: some with lettered options, some with a short answer. Both are scored by fixed
    rules, not by a model.

    ## Action Space
    `UnicodeText`: any message. Its final answer is the content of the last ``<answer>...</answer>`` or ``\boxed{...}``
    outside of thinking, or where there is neither, what follows the last "the answer is" (`rollcage.envs.answers`). An
    option is named by its letter or by its text; a short answer is compared as text, without case, articles and
    punctuation, or as a number (`rollcage.envs.qa.answers`). Naming several options names none.

    ## Observation Space
    `UnicodeText`: the question, its options and how to answer; then a verdict.

    ## Rewards
    1 for a right answer, else 0.

    ## Episode End
    Terminated after one message.

    ## Info
    - ``domain``: the question's domain.
    - ``outcome``: None after `reset`, then "right", "wrong", "malformed" (names no option, or several), "no_answer".
    - ``answer``: the letter of the option that the message names; else its final answer (at most 2,000 characters of
      it); None where it has none.

    ## Arguments
    - ``dataset``: "sample" (40 training and 40 test questions of our own, which need no file), or a published set:
      "mmlu", "mmlu_sample", "bbh", "agieval_sat-math" and its other parts, "agieval" (five parts), or "all" (mmlu, bbh
      and agieval). `rollcage.envs.data` says where its files are looked for; its licence is
      ``env.unwrapped.tasks.licence``.
    - ``data``: your own questions instead: a file (.jsonl, .jsonl.xz, .json, .csv), a folder of files, or {split: file
      or folder}; `rollcage.envs.qa.tasks.question_from_row` says which fields are read.
    - ``data_dir``: the only folder in which the files of ``dataset`` are looked for.
    - ``domains``: only the questions of this domain, or of these.
    - ``split``: None for "train" where the data have it, else for the split that they have.
    - ``shuffle_options``: a seed: the options of every question are put in another order, which depends on this seed
      and the question only, so that all rollouts of a question see the same. None to leave them. Options that refer to
      others ("all of the above") keep the order.
    - ``render_mode``: as in `TextEnv`.

    ## Version History
    - v0: first version.
    """

    def __init__(
        self,
        *,
        dataset: str = "sample",
        data: Data | None = None,
        data_dir: str | Path | None = None,
        domains: str | Sequence[str] | None = None,
        split: str | None = None,
        shuffle_options: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        tasks = qa_tasks(dataset, data, data_dir, domains)
        super().__init__(tasks, split=split or default_split(tasks), render_mode=render_mode)
        self.shuffle_options = shuffle_options

    def begin(self, task: Task) -> str:
        """Pose the question; the state is the options as shown (letter -> text) and the right answer."""
        options, answer = task.data["options"], task.data["answer"]
        if self.shuffle_options is not None and options:
            options, answer = _shuffled(options, answer, f"{self.shuffle_options}/{task.id}")
        self.state = options, answer
        if not options:
            return (
                f"{task.data['question']}\n\nThink step by step, then give the answer, as short as possible, in "
                "<answer> </answer> tags."
            )
        listed = "\n".join(f"{letter}. {text}" for letter, text in options.items())
        return (
            f"{task.data['question']}\n\n{listed}\n\nThink step by step, then give the letter of the right option in "
            "<answer> </answer> tags."
        )

    def reset_info(self) -> Mapping[str, Any]:
        """No outcome yet."""
        return {"domain": self.task.data["domain"], "outcome": None, "answer": None}

    def advance(self, action: str) -> Turn:
        """Score the message's final answer."""
        options, right_answer = self.state
        answer = final_answer(action)
        if answer is None:
            outcome = "no_answer"
        elif options:
            letter = chosen_option(answer, options)
            outcome = "malformed" if letter is None else "right" if letter == right_answer else "wrong"
            answer = letter or answer
        else:
            outcome = "right" if same_short_answer(right_answer, answer) else "wrong"
        right = outcome == "right"
        shown = None if answer is None else answer[:2_000]
        info = {"domain": self.task.data["domain"], "outcome": outcome, "answer": shown}
        return Turn(_VERDICTS[outcome], float(right), True, right, info)

    def expert(self) -> str:
        """Return the known answer, after the known explanation where the data have one."""
        solution = self.task.data["solution"]
        if self.shuffle_options is not None:
            solution = ""  # it may name letters
        return f"{solution}\n\n<answer>{self.state[1]}</answer>".lstrip()

    def random_action(self, rng: np.random.Generator) -> str:
        """Return a random option; for a short answer "yes" or "no"."""
        choices = tuple(self.state[0]) or ("yes", "no")
        return f"<answer>{choices[int(rng.integers(len(choices)))]}</answer>"

    def exploits(self) -> Sequence[str]:
        """Return ways to name the right answer together with others, or in thought only."""
        options, right = self.state
        other = next((letter for letter in options if letter != right), "-86413")
        answers = [f"{right} or {other}", f"{right}, {other}", f"{right}/{other}", f"not {right}", f"{right} {other}"]
        if options:
            answers += [f"{right}. {options[other]}", " ".join(options), ", ".join(options.values()), "any of them"]
        return (
            *(f"<answer>{answer}</answer>" for answer in answers),
            f"<answer>{right}</answer> <answer>{other}</answer>",
            f"\\boxed{{{right}}} or \\boxed{{{other}}}",
            f"<think><answer>{right}</answer></think>",
        )


def _shuffled(options: Mapping[str, str], answer: str, key: str) -> tuple[dict[str, str], str]:
    if any(_REFERS_TO_OTHERS.search(text) for text in options.values()):
        return dict(options), answer
    order = list(options)
    Random(key).shuffle(order)
    shown = {letter: options[old] for letter, old in zip(ascii_uppercase, order, strict=False)}
    return shown, ascii_uppercase[order.index(answer)]
