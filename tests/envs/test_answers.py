"""Where a message's final answer stands: one policy for Math and QA."""

from __future__ import annotations

import doctest
import time

import pytest

import rollcage.envs.answers
from rollcage.envs.answers import final_answer


def test_the_examples_of_the_module_run() -> None:
    assert doctest.testmod(rollcage.envs.answers) == (0, 4)


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (r"\boxed{5}", "5"),
        (r"\boxed{4} and then \boxed{5}", "5"),  # the last mark counts
        (r"<answer>4</answer> \boxed{5}", "5"),
        (r"\boxed{4} <answer>5</answer>", "5"),
        (r"<answer>\boxed{5}</answer>", "5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed {\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),  # escaped braces are characters
        ("<final_answer> 7 </final_answer>", "7"),
        ("<answer>] ]</answer>", "] ]"),
        ("<answer>\n12\n</answer>\nDone.", "12"),
        ("48 / 2 = 24\n#### 72", "72"),
        ("The answer is 18. I hope it is correct.", "18"),
        ("The final answer is $3.5$.", "$3.5$"),
        ("**Answer:** (B)", "(B)"),
        ("ANSWER IS C", "C"),
        ("The answer is: **Paris**", "Paris"),
        ("The answer is 4. No, the answer is 5.", "5"),
        (r"The answer is 4, that is \boxed{5}", "5"),  # a mark comes before a phrase
        ("<think>the answer is 4</think>The answer is 5", "5"),
        ("the thinking began in the prompt</think><answer>5</answer>", "5"),
    ],
)
def test_the_last_mark_counts_else_the_last_phrase(message: str, answer: str) -> None:
    assert final_answer(message) == answer


@pytest.mark.parametrize(
    "message",
    [
        "", "5", "It is 5.", r"\boxed{}", r"\boxed{ }", r"\boxed{5", "<answer>5", "5</answer>", "answer",
        "The answer is",
        r"\boxed{5} \boxed{6",  # cut off in the last mark: the earlier one does not stand in for it
        r"<think>\boxed{5}</think>", r"<think>\boxed{5}", "<ANSWER>5</ANSWER>", "answers: 5", "\x00", "\ud800",
    ],
)  # fmt: skip
def test_without_a_closed_mark_outside_of_thinking_there_is_no_answer(message: str) -> None:
    assert final_answer(message) is None


@pytest.mark.parametrize(
    "part",
    [
        "answer ",
        "answer is ",
        "\\boxed{",
        "<answer>",
        "<think>",
        "{",
        "}",
        "\\",
        "#",
        " *",
        ". ",
        "<",
        "\x00",
        "answer is x.",
    ],
)
def test_a_mebibyte_of_any_mark_takes_a_moment(part: str) -> None:
    text = "answer is " + part * (2**20 // len(part))
    begin = time.process_time()
    final_answer(text)
    assert time.process_time() - begin < 2
