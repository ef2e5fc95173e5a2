"""Arithmetic is read by one policy and valued exactly, whatever the text."""

from __future__ import annotations

import random
import time
from fractions import Fraction

import pytest

from rollcage.envs.countdown.arithmetic import _MAX_CACHED_SHAPE, _cached_plan, evaluate, format_value, parse

MIB = 1 << 20


def value(text: str) -> Fraction:
    expression = parse(text)
    assert expression is not None, text
    found = evaluate(expression)
    assert found is not None, text
    return Fraction(*found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 7),
        ("0", 0),
        ("1+2*3", 7),
        ("(1+2)*3", 9),
        ("20-5-4", 11),
        ("100/10/5", 2),
        ("2-3*4/6+1", 1),
        ("7/2", Fraction(7, 2)),
        ("1/3+1/6", Fraction(1, 2)),
        ("3/(0-6)", Fraction(-1, 2)),
        (" ( ( 3 + 5 ) )\n*\t10 ", 80),
        ("9" * 18, 999_999_999_999_999_999),
        ("9" * 18 + "+1", 10**18),
    ],
)
def test_value_is_exact_and_precedence_is_the_usual_one(text: str, expected: Fraction | int) -> None:
    assert value(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-3+5", 2),
        ("3*-5", -15),
        ("-(3-5)", 2),
        ("3--5", 8),
        ("3-(-5)", 8),
        ("-3*5", -15),
        ("8/-2*-1", 4),
        ("2+-3", -1),
    ],
)
def test_one_minus_sign_before_an_operand_is_read(text: str, expected: int) -> None:
    assert value(text) == expected


@pytest.mark.parametrize("text", ["--3", "3---5", "+3", "3*+5", "-+3", "+(3)", "-", "(-)", "3-", "-(-(-3)", "- -3"])
def test_two_signs_a_plus_sign_or_a_sign_alone_are_malformed(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("(3+5)×10", "(3+5)*10"),
        ("3·5⋅2∗4", "3*5*2*4"),
        ("80÷10∕2", "80/10/2"),
        ("9−5–2", "9-5-2"),
        ("（３＋５）＊１０－４／２", "(3+5)*10-4/2"),
        (r"(3+5)\times 10", "(3+5)*10"),
        (r"3\cdot5\div2", "3*5/2"),
        (r"3\times5", "3*5"),
        ("3\u00a0+\u20095\u3000", "3+5"),
    ],
)
def test_other_ways_to_write_the_same_are_read_as_the_same(text: str, plain: str) -> None:
    assert parse(text) == parse(plain) is not None


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "()", "(", ")", "(3", "3)", ")3(", "(3+5))*10", "((3+5)*10", "3 5", "3 5 +", "2(3)", "(2)(3)",
        "(2)3", "3+*5", "3*/5",
        "7//2", "7/ /2", "2**5", "2* *5", "7%2", "5!", "(5)!", "2^5", "gamma(5)", "sqrt(9)", "abs(3)", "x", "3x5",
        "3X5", "1e1",
        "2.5*10", "5.", ".5", "5.0", "1,000", "1_000", "0x10", "0b11", "0o7", "0x0*(3)+0x159", "10L", "1j", "07",
        "00", "-07", "3+05",
        "1" * 19, "9" * 19, "1" * 20 + "+3", "1" * 10_000,
        "[3+5]*10", "{3+5}*10", "3;5", "3\\5", "3|5", "3&5", "~3", "3<<5", "3<5", "3>5", "3 if 5", "lambda:3",
        "'3'", '"3"', "`3+5`", "$3+5$",
        "**3+5**", "3+5.", "3+5,", "True", "None", "\uff11\uff10 3",
        r"\frac{3}{5}", r"\timesx", r"3\timesx5", r"3\divide5", r"\boxed{8}", r"\left(3+5\right)",
        "٣+٥", "३+५", "³+5", "½", "Ⅲ+5", "①+5", "𝟑+5", "3\u200b+5", "\ufeff3+5", "3\x00+5", "\x003+5", "3\ud800+5",
        "−", "3＋", "~1", "3~5",
    ],
)  # fmt: skip
def test_everything_else_is_malformed(text: str) -> None:
    assert parse(text) is None


def test_claim_after_one_equals_sign_is_an_integer() -> None:
    assert parse("(3+5)*10 = 80") == ([3, 5, 10], (("+", 0, 1), ("*", 3, 2)), 80)
    assert parse("3-5=-2").claim == -2  # type: ignore[union-attr]
    assert parse("3+5").claim is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text",
    [
        "=8", "3+5=", "3+5==8", "3+5=8=8", "8=3+5", "3+5=8.0", "3+5=08", "3+5=8 0", "3+5=--8", "3+5=+8", "3+5=(8)", "=",
        "3=" + "9" * 19, "3+5=x", "3=+5=8",
    ],
)  # fmt: skip
def test_other_uses_of_the_equals_sign_are_malformed(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize("text", ["1/0", "5/(3-3)", "1/(0*7)", "0/0", "1/(1/2-2/4)", "1/0*0"])
def test_division_by_zero_has_no_value(text: str) -> None:
    expression = parse(text)
    assert expression is not None
    assert evaluate(expression) is None


def test_numbers_are_reported_in_order() -> None:
    assert parse("50*3-(0+3)").numbers == [50, 3, 0, 3]  # type: ignore[union-attr]


def random_tree(rng: random.Random, depth: int) -> tuple[str, Fraction | None]:
    """A fully parenthesised expression and its value, computed beside the text; None where it divides by zero."""
    if depth == 0 or rng.random() < 0.2:
        number = rng.randrange(0, 12)
        return str(number), Fraction(number)
    left, a = random_tree(rng, depth - 1)
    right, b = random_tree(rng, depth - 1)
    operator = rng.choice("+-*/")
    space = rng.choice(["", " ", "\n"])
    sign = rng.choice(["", "", "-"])
    text = f"{sign}({left}{space}{operator}{space}{right})"
    if a is None or b is None or (operator == "/" and b == 0):
        return text, None
    result = {"+": a + b, "-": a - b, "*": a * b, "/": a / (b or 1)}[operator]
    return text, -result if sign else result


def test_random_expressions_have_the_value_that_they_were_built_with() -> None:
    rng = random.Random(5)
    divided_by_zero = 0
    for _ in range(3000):
        text, expected = random_tree(rng, rng.randrange(1, 5))
        expression = parse(text)
        assert expression is not None, text
        found = evaluate(expression)
        divided_by_zero += expected is None
        assert (None if found is None else Fraction(*found)) == expected, text
    assert 0 < divided_by_zero < 1500


def test_precedence_agrees_with_python_on_expressions_without_parentheses() -> None:
    rng = random.Random(6)
    for _ in range(1000):
        terms = [str(rng.randrange(1, 20)) for _ in range(rng.randrange(2, 8))]
        text = terms[0] + "".join(rng.choice("+-*") + term for term in terms[1:])
        # products first, then sums: written out again here, without the parser's stack
        total = Fraction(0)
        for sign, product in _signed_products(text):
            total += sign * product
        assert value(text) == total, text


def _signed_products(text: str) -> list[tuple[int, int]]:
    products = []
    for part in text.replace("-", "+-").split("+"):
        factors = part.removeprefix("-").split("*")
        product = 1
        for factor in factors:
            product *= int(factor)
        products.append((-1 if part.startswith("-") else 1, product))
    return products


@pytest.mark.parametrize(
    "text",
    [
        "(" * MIB, ")" * MIB, "(" * (MIB // 2) + "1" + ")" * (MIB // 2), "-(" * (MIB // 2), "1+" * (MIB // 2),
        "1+" * (MIB // 2) + "1",
        "9" * MIB, "0" * MIB, "1 " * (MIB // 2), " " * MIB, "=" * MIB, "\\" * MIB, r"\times" * (MIB // 6),
        "1*(" * (MIB // 3), "×" * MIB,
        "9**99**98", "9*" * (MIB // 2) + "9", "9/" * (MIB // 2) + "9", "\x00" * MIB, "\ud800" * MIB,
        "=" + "9" * MIB, "=" + " " * MIB + "x",
    ],
    ids=lambda text: f"{text[:6]!r} x {len(text)}",
)  # fmt: skip
def test_a_mebibyte_of_anything_is_read_in_linear_time(text: str) -> None:
    start = time.process_time()
    parse(text)
    assert time.process_time() - start < 2.0  # measured: 0.5 s at most; quadratic work would take minutes


def test_nested_parentheses_do_not_exhaust_the_stack() -> None:
    depth = 100_000
    assert value("(" * depth + "7" + ")" * depth) == 7
    assert value("-(" * depth + "7" + ")" * depth) == 7


def test_long_texts_are_not_kept_in_memory() -> None:
    before = _cached_plan.cache_info().currsize
    parse("+".join(["1"] * (_MAX_CACHED_SHAPE + 1)))
    assert _cached_plan.cache_info().currsize == before


def test_values_are_written_as_integers_or_fractions() -> None:
    assert format_value(8, 1) == format_value(-16, -2) == "8"
    assert format_value(14, -4) == "-7/2"
