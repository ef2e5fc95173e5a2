"""Which answers count as right: equal ones however they are written, and nothing that only looks like one."""

from __future__ import annotations

import doctest
import time

import pytest

import rollcage.envs.math.equality
from rollcage.envs.math import symbolic
from rollcage.envs.math.equality import judge


def test_the_examples_of_the_module_run() -> None:
    assert doctest.testmod(rollcage.envs.math.equality) == (0, 1)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        # numbers
        ("5", "x = 5"), ("5", "m + n = 5"), ("5", "5.0"), ("5", "a = b = 5"), ("1/3", "0.333333"),
        ("1/3", r"\frac{2}{6}"),
        ("0.5", r"50\%"), ("50", r"50\%"), (r"50\%", "0.5"), (r"50\%", "50"), ("16", r"\frac{32}{2}"), ("1000", "10^3"),
        (".0000672", r"6.72 \times 10^{-5}"), ("58,500", "x = 58500"), (r"\frac{600}{7}", r"\frac{600}{7}\text{ km/h}"),
        (r"\angle BEA_1=90", "90"), ("52_8", "52_{8}"), ("52_8", "52"),
        # lists, tuples, intervals
        ("1,-2", "-2, 1"), ("1,-2", r"\{-2, 1\}"), ("1,-2", r"1 \text{ and } -2"), ("2, 3, and 4", "4,3,2"),
        (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}"), ("(1,2)", "( 1 , 2 )"), ("(1,2)", "1,2"),
        ("$69$,$84$", "84, 69"),
        ("100, 200", "100,200"), ("(1,1),(3,2)", "(3,2), (1,1)"), (r"(\frac12, 3)", "(0.5, 3)"),
        ("(3,4]", r"\left(3,4\right]"),
        # words and letters
        (r"\text{Evelyn}", "evelyn"), (r"\text{(C)}", "C"), ("C", r"\text{C}"),
        # by math-verify
        (r"\sqrt{8}", r"2\sqrt2"), ("x+1", "1+x"), ("2k+2", "2(k+1)"), ("p - q", "-q+p"), ("x^2-1", "(x-1)(x+1)"),
        ("y=2x+3", "y - 3 = 2x"), ("y=2x+3", "2x+3"), ("5x - 7y + 11z + 4 = 0", "-5x+7y-11z-4=0"), ("6-5i", "-5i+6"),
        (r"\frac{11+9a}{20}", "0.55+0.45a"), (r"\cot x", r"\frac{\cos x}{\sin x}"), ("2^{1009}", r"2\cdot 2^{1008}"),
        (r"(-\infty,-1)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,-1)"), (r"(2,\infty)", "x > 2"),
        (r"x \in [-2,7]", "[-2,7]"),
        (r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}", r"\begin{bmatrix} -\frac{1}{3} \\ \frac{2}{3} \end{bmatrix}"),
        (r"(-\infty,2)", "x<2"), ("x<2", r"(-\infty,2)"), (r"x \le 2", r"(-\infty,2]"), ("0<x<2", "(0,2)"),
        # signs, emphasis and units
        (r"-\frac{3}{4}", r"\frac{3}{-4}"), (r"\frac34", r"\frac{-3}{-4}"), ("6", "**6**"), ("6", "*$6$*"),
        ("1000000", "1 million"), ("2500000", r"\$2.5\text{ million}"), ("1.2 million", "1,200,000"),
        ("8", "8 eggs left"), ("20", "20 years old"), ("60", "60 miles per hour"), ("5", r"5\text{ square units}"),
        (r"2\sqrt{13}\text{ cm}", r"\sqrt{52}"), (r"\pi", "3.141593"),
    ],
)  # fmt: skip
def test_an_equal_answer_is_right_however_it_is_written(gold: str, answer: str) -> None:
    assert judge(gold, answer) == "right"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("5", ""), ("5", "6"), ("5", "-5"), ("5", "3 = 5"), ("5", "18 or 5"), ("5", "4, 5"), ("5", r"\{5, 6\}"),
        ("5", "5, 5, 6"),
        ("5", r"5 \pm 1"), ("5", r"500.1\%"), ("1", "1.0000001"), ("1/3", "0.3333"), ("1000000", "1000001"),
        ("0", r"\emptyset"),
        ("72", "48/2+48"), ("7", r"\sqrt{49}"), ("120", "5!"), ("6", r"2 \cdot 3"), ("5", "x"), ("5", "any number"),
        ("5", "5x"),
        ("5", r"(-\infty, \infty)"), ("5", r"\mathbb{R}"), ("5", r"x \in \mathbb{R}"), ("5", "five"),
        ("5", r"4 < x < 6"),
        ("0.0000672", "0.000067"), ("52_8", "52_9"), ("3.14", r"\pi"), (r"\pi", "3.14"), ("0", r"\frac{0}{0}"),
        ("5", "[5, 5]"),
        ("1,-2", "1"), ("1,-2", "(1,-2)"), ("1,-2", "1,-2,3"), ("1,1", "1,2"), ("(1,2)", "(2,1)"), ("(1,2)", "[1,2]"),
        ("(3,4]", "(3,4)"), ("(1,1),(3,2)", "(3,2)"), (r"1 \pm \sqrt{19}", r"1+\sqrt{19}"),
        ("5, 6, 7", r"5 \le n \le 7"),
        (r"\text{even}", "neve"), (r"\text{even}", "odd"), (r"\text{(C)}", "A, B, C, D"), (r"\text{(C)}", "(B)"),
        ("C", "A or C"),
        ("x", "y"), ("x", r"\mathbb{R}"), ("5t", "5"), (r"12\pi", "12"), (r"\sqrt{2}", r"\pm \sqrt{2}"),
        (r"\sqrt{2}", "x"),
        (r"\sqrt{2}", r"3 = \sqrt{2}"), (r"\sqrt{2}", r"\sqrt{2}, \sqrt{3}"), ("2k", "2k or 3k"), (r"\infty", "oo"),
        (r"\frac{\pi}{4}", r"\int_0^1 \frac{1}{1+x^2} dx"), (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^n k"),
        ("x", r"\max(x, x)"),
        ("x<2", r"(-\infty,3)"), ("x<2", r"(-\infty,2]"), ("x<2", "(2,3)"), (r"-\frac34", r"\frac{-3}{-4}"),
        ("5", "5/s"),
        ("6xyz", "6"), ("nan", "nan + 1"), (r"x+1", "the answer: $x+1$"),
    ],
)  # fmt: skip
def test_a_wrong_or_hedged_or_unfinished_answer_is_wrong(gold: str, answer: str) -> None:
    assert judge(gold, answer) == "wrong"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        # multipliers and fractions
        ("12", "12 thousand"), ("12", "12 hundred"), ("12", "12 million dollars"), ("12", "12 dozen"),
        ("12", "12 dozen eggs"), ("12", "12 halves"), ("12", r"12\text{ thousand}"), ("12", r"12\text{ K}"),
        ("2", "2 thirds"), ("3", "3 quarters"), ("3", r"3\text{ billion}"), ("7", "7 twelfths"), ("7", "7 hundredths"),
        (r"2\sqrt{13}", r"2\sqrt{13}\text{ thousand}"), (r"2\pi", r"2\pi\text{ squared}"), (r"2\pi", r"2\pi thousand"),
        # operations and constants
        ("5", "5 factorial"), ("5", "5 squared"), ("5", "5 negated"), ("5", "5 divided by two"), ("5", r"5\text{!}"),
        ("100", "100 below zero"), ("12", r"12\text{ pi}"), ("12", "12 root"), ("5", "5 plus"), ("5", "5 times"),
        # number words and hedges
        ("5", r"5 \text{ point five}"), ("5", "5 maybe six"), ("5", r"5 \text{ or maybe six}"),
    ],
)  # fmt: skip
def test_words_that_change_a_number_are_no_unit(gold: str, answer: str) -> None:
    assert judge(gold, answer) == "wrong"
    assert judge(gold, answer, problem=f"Is it {answer}?") == "wrong"  # not even where the problem says them


def test_a_unit_may_hold_words_of_the_problem() -> None:
    assert judge("5", "5 red marbles", problem="How many red marbles are there?") == "right"
    assert judge("5", "5 or marbles", problem="How many, 3 or 5 marbles, are there?") == "wrong"


@pytest.mark.parametrize(
    ("problem", "gold", "copy"),
    [
        (r"Simplify $\sqrt{50} + \sqrt8$.", r"7\sqrt2", r"\sqrt{50}+\sqrt{8}"),
        ("Factor $x^2+2x+1$.", "(x+1)^2", "x^2 + 2x + 1"),
        ("Write 14/21 in lowest terms.", r"\frac{2}{3}", "14/21"),
        ("What is $2^{10}$?", "1024", "2^{10}"),
    ],
)
def test_the_question_repeated_is_no_answer_to_it(problem: str, gold: str, copy: str) -> None:
    assert judge(gold, copy) == "right"
    assert judge(gold, copy, problem=problem) == "wrong"
    assert judge(gold, gold, problem=problem) == "right"


def test_the_right_answer_may_stand_in_the_problem() -> None:
    assert judge(r"\sqrt{2}", r"\sqrt2", problem=r"Which is larger, $\sqrt{2}$ or 1?") == "right"


def test_a_tolerance_is_exact_and_absolute() -> None:
    assert judge("4.2", "4.3", tolerance="1e-1") == "right"
    assert judge("4.2", "4.31", tolerance="1e-1") == "wrong"
    assert judge("4.2", "4.3") == "wrong"


@pytest.mark.parametrize("tolerance", ["1e9999999", "1e999999999", "9" * 5000, "-1", "nan", "inf", "1/0", "x"])
def test_a_tolerance_that_is_none_is_refused_at_once(tolerance: str) -> None:
    begin = time.monotonic()
    with pytest.raises(ValueError, match="no tolerance"):
        judge("4.2", "4.3", tolerance=tolerance)
    assert time.monotonic() - begin < 1


def test_numbers_and_words_are_judged_without_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic, "compare", lambda *_: pytest.fail("a process was asked"))
    assert judge("5", "5.0") == "right"
    assert judge("5", "9**9**9") == "wrong"
    assert judge("1, 2", "2, 1") == "right"
    assert judge(r"\text{even}", "odd") == "wrong"


@pytest.mark.parametrize(
    "bomb",
    [
        "9**9**9", "9^{9^{9}}", "10^{10^{10}}", "99999999999!", "(10^{10^{10}})!", r"\binom{10^{9}}{5\cdot10^{8}}",
        "x^" * 200 + "x",
        "(" * 240 + "1" + ")" * 240, "(" * 5000 + "1" + ")" * 5000, r"\sqrt{" * 80 + "2" + "}" * 80, "1+" * 240 + "1",
        r"\frac{1}{" * 50 + "1" + "}" * 50, r"\input{/etc/passwd}", r"\write18{touch /tmp/x}", "9" * 2**20,
        "\x00" * 1000, "\ud800",
        r"\log_2 3^{9^{9^9}}", r"\sin(10^{10^{5}})", r"(\sqrt{2}+\sqrt{3}+\sqrt{5}+\sqrt{7}+\sqrt{11}+\sqrt{13})^{30}",
    ],
)  # fmt: skip
def test_hostile_text_ends_soon_and_is_not_right(bomb: str) -> None:
    begin = time.monotonic()
    assert judge(r"\sqrt{2} + x", bomb, timeout_s=0.2) in ("wrong", "undecided")
    assert time.monotonic() - begin < 30


def test_many_slow_parts_share_one_deadline() -> None:
    bombs = ", ".join(f"x + {n}^{{9^{{9}}}}" for n in range(2, 20))
    golds = ", ".join(rf"x + \sqrt{{{n}}}" for n in range(2, 20))
    begin = time.monotonic()
    assert judge(golds, bombs, timeout_s=0.2) == "undecided"
    assert time.monotonic() - begin < 30
