"""What Countdown gives reward to, and what it does not: the acceptance cases and their neighbours."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import rollcage  # noqa: F401  (registers the environments)
from rollcage.envs.countdown.env import OUTCOMES, CountdownEnv


def make(**kwargs: Any) -> CountdownEnv:
    env = gymnasium.make("rollcage/Countdown-v0", **kwargs)
    assert isinstance(env, CountdownEnv)  # no wrapper stands between
    return env


def attempt(message: str, numbers: list[int], target: int) -> tuple[float, bool, dict[str, Any]]:
    """One episode on a problem set by hand: (reward, terminated, info)."""
    env = make()
    env.reset(options={"numbers": numbers, "target": target})
    _, reward, terminated, truncated, info = env.step(message)
    assert not truncated
    assert info["success"] == (reward == 1.0) == (info["outcome"] == "right")
    return reward, terminated, info


def outcome(answer: str, numbers: list[int], target: int) -> str:
    return attempt(f"<answer>{answer}</answer>", numbers, target)[2]["outcome"]


def test_e1_another_number_than_the_given_ones_or_another_operation_is_no_success() -> None:
    assert outcome("2.5*10", [2, 5, 10], 25) == "malformed"
    assert outcome("7//2", [7, 2], 3) == "malformed"
    assert outcome("2**5", [2, 5], 32) == "malformed"
    assert outcome("(5)!", [5], 120) == "malformed"
    assert outcome("gamma(5)", [5], 24) == "malformed"
    assert outcome("0x0*(3+5)+0x159", [3, 5], 345) == "malformed"
    assert outcome("25", [2, 5, 10], 25) == "wrong_numbers"
    assert outcome("2 5", [2, 5], 25) == "malformed"
    assert outcome("25*1", [2, 5, 1], 25) == "wrong_numbers"
    assert outcome("5**2", [5, 2], 25) == "malformed"
    assert outcome("5e1", [5, 1], 50) == "malformed"
    assert outcome("05*5", [5, 5], 25) == "malformed"


def test_e2_arithmetic_is_exact() -> None:
    assert outcome("100+1/(99*98*97)", [100, 1, 99, 98, 97], 100) == "wrong_value"
    assert outcome("1/3*3", [1, 3, 3], 1) == "right"
    assert outcome("1/49*49", [1, 49, 49], 1) == "right"  # 0.9999... in floating point
    assert outcome("8/(3-8/3)", [8, 3, 8, 3], 24) == "right"
    big = 999_999
    assert outcome(f"{big}*{big}*{big}+1-{big}*{big}*{big}", [big] * 6 + [1], 1) == "right"
    assert outcome(f"{big}*{big}/{big}/{big}+1/{big}", [big] * 5 + [1], 1) == "wrong_value"


@pytest.mark.parametrize(
    "message",
    [
        "<answer>(3+5)*10</answer>\n",
        "<answer>(3+5)*10</answer>Done.",
        "<answer>(3+5)*10</answer> Done.\n\n",
        "<answer>\n(3+5)*10\n</answer>",
        "<answer>(3+5)\n  *10\r\n</answer>",
        "<answer> ( 3 + 5 ) * 10 </answer>",
        "10*(5+3): <answer>10*(5+3)</answer>",
        "<think>3+5=8</think><answer>(3+5)*10</answer>",
        "thinking whose opening tag stood in the prompt</think>\n<answer>(3+5)*10</answer><|im_end|>",
        "<answer>3+5+10</answer> is 18, so no. <answer>(3+5)*10</answer>",
        "<answer>The <answer>(3+5)*10</answer></answer>",
    ],
)
def test_e3_what_stands_around_the_answer_does_not_matter(message: str) -> None:
    assert attempt(message, [3, 5, 10], 80)[0] == 1.0


def test_e4_huge_powers_are_refused_at_once() -> None:
    start = time.process_time()
    assert outcome("9**99**98", [9, 99, 98], 1) == "malformed"
    assert outcome("9*" * 1000 + "9", [9], 1) == "wrong_numbers"
    assert outcome("9" * 100_000, [9], 1) == "malformed"
    assert outcome("9" * 18, [9], 1) == "wrong_numbers"
    assert time.process_time() - start < 0.1


def test_e4_nothing_in_an_answer_is_executed(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for code in (
        f"__import__('os').system('touch {marker}')",
        f"open({str(marker)!r},'w')",
        f"exec(\"open({str(marker)!r},'w')\")",
        f"(lambda: open({str(marker)!r},'w'))()",
        f"3+5+10*len([open({str(marker)!r},'w')])",
    ):
        assert outcome(code, [3, 5, 10], 80) == "malformed"
    assert not marker.exists()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("(3+5)×10", "right"),
        ("(3+5)·10", "right"),
        (r"(3+5)\times10", "right"),
        ("（３＋５）＊１０", "right"),
        ("10×(8\u22123+3)", "wrong_numbers"),
        ("10×(5\u2212\u22123)", "right"),  # U+2212, the minus sign
        ("(3+5)*10 = 80", "right"),
        ("（３＋５）×１０＝８０", "right"),
        ("(3+5)*10 = 81", "wrong_value"),
        ("3+5+10 = 80", "wrong_value"),
        ("80 = (3+5)*10", "malformed"),
        ("(3+5)*10 = 80 = 80", "malformed"),
        ("(٣+٥)*10", "malformed"),  # digits of other scripts
        ("(3+5)x10", "malformed"),
        ("(3+5)10", "malformed"),
        ("[3+5]*10", "malformed"),
        ("(3+5)*10.", "malformed"),
    ],
)
def test_e5_one_policy_for_other_ways_to_write(answer: str, expected: str) -> None:
    assert outcome(answer, [3, 5, 10], 80) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("3+5", "wrong_numbers"),
        ("3+5+10+10", "wrong_numbers"),
        ("(3+5)*5*10/5", "wrong_numbers"),
        ("(5+5)*10-3", "wrong_numbers"),
        ("80", "wrong_numbers"),
        ("3/(5-5)*10", "wrong_numbers"),
        ("3+5*10", "wrong_value"),
        ("-(3+5)*10", "wrong_value"),
        ("3+5+", "malformed"),
        ("", "malformed"),
    ],
)
def test_e5_wrong_answers_are_no_success_and_raise_nothing(answer: str, expected: str) -> None:
    assert outcome(answer, [3, 5, 10], 80) == expected


def test_e5_division_by_zero_is_no_success_and_raises_nothing() -> None:
    assert outcome("10/(5-5)", [5, 5, 10], 10) == "division_by_zero"
    assert outcome("0/(5-5)", [0, 5, 5], 0) == "division_by_zero"
    assert outcome("7/0", [7, 0], 0) == "division_by_zero"


def test_a_number_given_twice_is_used_twice() -> None:
    assert outcome("5*5", [5, 5], 25) == "right"
    assert outcome("5*5", [5, 5, 5], 25) == "wrong_numbers"


@pytest.mark.parametrize(
    "message",
    [
        "", "(3+5)*10", "The answer is (3+5)*10.", "<answer>(3+5)*10", "(3+5)*10</answer>", "</answer>(3+5)*10<answer>",
        "<answer (3+5)*10 </answer>", "<ANSWER>(3+5)*10</ANSWER>", "<think><answer>(3+5)*10</answer></think>",
        "<answer>(3+5)*10</answer></think>", "<think>perhaps <answer>(3+5)*10</answer>", r"\boxed{(3+5)*10}",
        "<answer>(3+5)*10</answer> or <answer>3",
    ],
)  # fmt: skip
def test_an_answer_is_what_stands_in_closed_tags_after_the_thinking(message: str) -> None:
    assert attempt(message, [3, 5, 10], 80)[2]["outcome"] == "no_answer"


@pytest.mark.parametrize(
    "message",
    [
        "", "\x00", "\ud800", "\udfff<answer>\ud800</answer>", "<answer>\x00</answer>", "x" * 2**20,
        "<answer>" * 2**17, "</answer>" * 2**17,
        "<answer>1</answer>" * 2**16, "<think>" * 2**17, "</think>" * 2**17, "<answer>" + "(" * 2**20 + "</answer>",
        "<answer>" + "1+" * 2**19 + "1</answer>", "<answer>" + "9" * 2**20 + "</answer>", "<answer>=</answer>",
        "<answer>1=2=3</answer>",
    ],
    ids=lambda text: f"{text[:12]!r} x {len(text)}",
)  # fmt: skip
def test_e15_any_text_is_an_action_and_has_a_documented_outcome(message: str) -> None:
    start = time.process_time()
    reward, terminated, info = attempt(message, [3, 5, 10], 80)
    assert (reward, terminated) == (0.0, True)
    assert info["outcome"] in OUTCOMES
    assert time.process_time() - start < 2.0


def test_e15_sampled_gibberish_is_an_action() -> None:
    env = make()
    env.action_space.seed(3)
    env.reset(seed=3)
    for _ in range(200):
        _, reward, terminated, _, info = env.step(env.action_space.sample())
        assert (reward, terminated, info["outcome"]) == (0.0, True, "no_answer")
        env.reset()
