"""Written mathematics in one form, and written numbers read exactly."""

from __future__ import annotations

import doctest
import random
import time
from fractions import Fraction

import pytest

import rollcage.envs.math.notation
import rollcage.envs.math.units
from rollcage.envs.math.notation import normalise, read_number


def test_the_examples_of_the_module_run() -> None:
    assert doctest.testmod(rollcage.envs.math.notation) == (0, 4)
    assert doctest.testmod(rollcage.envs.math.units) == (0, 2)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("73", "73"), ("073", "73"), ("-7", "-7"), ("−7", "-7"), ("+7", "7"), ("７", "7"), ("18.", "18"),
        ("$18$", "18"),
        ("3.50", "7/2"), (".5", "1/2"), ("1,234", "1234"), ("1,234,567.5", "2469135/2"), ("1 000 000", "1000000"),
        (r"10,\!080", "10080"), (r"11,\! 111,\! 111,\! 100", "11111111100"), ("1{,}000", "1000"), (r"1\,000", "1000"),
        (r"\frac{1}{2}", "1/2"), (r"\dfrac12", "1/2"), (r"\frac 59", "5/9"), (r"\frac{270}7", "270/7"), ("3/4", "3/4"),
        (r"-\frac{35}{9}", "-35/9"), (r"\frac{-1}{2}", "-1/2"), ("-1./3", "-1/3"), (r"\frac{1}{29,322}", "1/29322"),
        (r"137 \frac{1}{2}", "275/2"), (r"1\frac{4}{5}", "9/5"), ("1 1/2", "3/2"), ("½", "1/2"),
        (r"\approx 8.24", "206/25"),
        ("4.5e3", "4500"), ("1e-5", "1/100000"), (r"3\times 10^8", "300000000"), (r"6.72 \cdot 10^{-5}", "42/625000"),
        ("10^3", "1000"), ("2^{10}", "1024"), (r"50\%", "1/2"), ("50 percent", "1/2"), (r"12.5\text{ percent}", "1/8"),
        (r"\$18.90", "189/10"), ("€5", "5"), ("-$5", "-5"), (r"90^\circ", "90"), ("90°", "90"), (r"90^{\circ}", "90"),
        (r"5.4 \text{ cents}", "27/5"), (r"864 \mbox{ inches}^2", "864"), ("18 dollars", "18"), ("5 km/h", "5"),
        ("5cm", "5"), (r"300 \mathrm{~km} / \mathrm{s}", "300"), (r"\mathbf{2340}", "2340"),
        (r"\left( 5 \right)", None),
    ],
)  # fmt: skip
def test_a_number_is_read_exactly_however_it_is_written(text: str, value: str | None) -> None:
    number = read_number(normalise(text))
    assert (number.value if number else None) == (Fraction(value) if value else None)


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "x=5", "1+1", "2*3", "5!", "9**9", r"\sqrt{49}", "5x", "5 x", "5i", r"5\pi", "6xyz", "6 ab",
        "18 or 19",
        "18, 19", "18 and 19", "18 or more", "5 to 6", "3 times 4", "not 5", "5 not", "1/0", "0^0", "52_8", "1.2.3",
        "1/2/3",
        "two", "nan", "inf", "0x10", "1e999999999", "9^9999", "9" * 5000, "9^{9^9}", "٣", "²", "\x00", "\ud800",
        "1,2", "1,23",
    ],
)  # fmt: skip
def test_what_is_left_to_work_out_or_to_choose_is_no_number(text: str) -> None:
    assert read_number(normalise(text)) is None


def test_a_space_between_digits_is_not_lost() -> None:
    assert normalise("1 1/2") != normalise("11/2")
    assert normalise("100, 200") != normalise("100,200")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\dfrac{\pi}{2})"),
        (r"$x^2 + 1$", "x^{2}+1"), (r"\(x\)", "x"), (r"\text{Evelyn}", "Evelyn"), (r"2 \sqrt 5", r"2\sqrt{5}"),
        (r"x \le 5", r"x \leq 5"), ("x ≤ 5", r"x \leqslant 5"), (r"1 \text{ and } 2", "1, 2"), ("1; 2", "1, 2"),
        ("π", r"\pi"),
        (r"\mathrm{A}", r"\textbf{A}"), (r"\displaystyle x", "x"), (r"\lbrace 1 \rbrace", r"\{1\}"), ("x²", "x^2"),
    ],
)  # fmt: skip
def test_two_ways_to_write_the_same_become_one(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


def test_rows_of_a_matrix_stay_apart() -> None:
    assert normalise(r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}").count(r"\\") == 1


def test_no_answer_is_slow_to_read() -> None:
    pieces = [
        *r"\{}[](),.$^_ 0123456789xe%-/",
        r"\frac",
        r"\text{",
        r"\sqrt",
        " and ",
        " or ",
        r"\left(",
        "10^",
        ",000",
        "\n",
    ]
    rng = random.Random(0)
    texts = [piece * (2000 // len(piece)) for piece in pieces]
    texts += ["".join(rng.choices(pieces, k=1000))[:2000] for _ in range(100)]
    for text in texts:
        begin = time.process_time()
        read_number(normalise(text))
        assert time.process_time() - begin < 0.25, text[:40]
