"""Numbers in text: every accepted form, what is not one, exactness, and linear time on hostile text."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.tasks.scorers.numbers import MAX_EXPONENT, last_number, number_of, numbers_equal, only_number, whole_number
from tests.unit.tasks.scorers.linear_time import grows_linearly


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("-3.50", Fraction(-7, 2)),
        (".5", Fraction(1, 2)),
        ("+7", 7),
        ("1,234,567.8", Fraction(12345678, 10)),
        ("3/4", Fraction(3, 4)),
        ("3 / 4", Fraction(3, 4)),
        ("1.5e-3", Fraction(3, 2000)),
        ("2E6", 2_000_000),
        ("1.5 x 10^3", 1500),
        ("1.5 × 10^{-3}", Fraction(3, 2000)),
        (r"2 \times 10^{6}", 2_000_000),
        ("10^6", 10**6),
        ("-10^{-2}", Fraction(-1, 100)),
        ("2·10^3", 2000),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        (r"\tfrac{-3}{4}", Fraction(-3, 4)),
        ("−7", -7),
        ("$1,234.50", Fraction(2469, 2)),
        ("-$5", -5),
        ("€12", 12),
        ("50%", 50),
        ("5.", 5),
        ("2 1/2", Fraction(5, 2)),
        ("-1,234 3/4", Fraction(-4939, 4)),
        (r"2\frac{1}{2}", Fraction(5, 2)),
        (r"$-2 \dfrac{ 1 }{ 4 }$", Fraction(-9, 4)),
    ],
)
def test_forms(text: str, value: Fraction | int) -> None:
    assert last_number(text) == value
    assert whole_number(text) == value
    assert last_number(f"First 17, then it is {text} apples.") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10-4", 4),
        ("x-4", 4),
        ("(5)-3", 3),
        ("10 - 4", 4),
        ("= -4", -4),
        ("1,2,3", 3),
        ("12,345,67", 67),
        ("1234,567", 567),
        ("1, 234", 234),
        ("It costs 5 dollars, not 6.", 6),
        ("2024-11-22", 22),
        ("5 / 0 is none, 3", 3),
        ("٣ 4 ٥", 4),
        ("３", None),
        ("½", None),
        ("five", None),
        ("", None),
        ("1/0", None),
        ("7 and 1/0", None),
        (f"1e{MAX_EXPONENT}", 10**MAX_EXPONENT),
        (f"1e-{MAX_EXPONENT}", Fraction(1, 10**MAX_EXPONENT)),
        (f"1e{MAX_EXPONENT + 1}", None),
        ("1e999999999", None),
        ("9" * 400, int("9" * 400)),
        ("9" * 401, None),
        ("infinity nan", None),
        ("2 5/3", None),
        ("2 3/3", None),
        ("2 1/0", None),
        ("2 1/2/3", 3),
        ("2 1/2.5", Fraction(2, 5)),
        ("2.5 1/2", Fraction(1, 2)),
        ("3/4 1/2", Fraction(1, 2)),
        ("2\n1/2", Fraction(1, 2)),
        ("2  1/2", Fraction(1, 2)),
        ("10-2 1/2", Fraction(5, 2)),
        ("2 1/2.", Fraction(5, 2)),
        ("12 m^2", 12),
        ("9.8 m/s^{-2}.", Fraction(98, 10)),
        ("x^2", None),
        ("2^10", None),
        ("2^{10}", None),
        ("2^10 = 1024", 1024),
    ],
)
def test_the_last_number_of_a_text(text: str, value: Fraction | int | None) -> None:
    assert last_number(text) == value


@pytest.mark.parametrize("text", ["x=5", "5 apples", "1,2", "4-3", "", "5 6", "--5", "5;"])
def test_texts_that_are_no_whole_number(text: str) -> None:
    assert whole_number(text) is None


def _answer_number(text: str) -> object:
    try:
        return only_number(text)
    except ValueError:
        return "several"


@given(st.integers(-(10**12), 10**12), st.integers(0, 6))
def test_decimals_are_exact(digits: int, places: int) -> None:
    value = Fraction(digits, 10**places)
    whole, part = divmod(abs(digits), 10**places)
    sign = "-" if digits < 0 else ""
    tail = f".{part:0{places}}" if places else ""
    assert last_number(f"is {sign}{whole}{tail}") == value
    assert last_number(f"is {sign}{whole:,}{tail} kg") == value
    assert last_number(f"is {sign}${whole:,}{tail}!") == value


@given(st.fractions(max_denominator=10**6))
def test_fractions_are_exact(value: Fraction) -> None:
    assert last_number(f"{value.numerator}/{value.denominator}") == value
    assert last_number(f"\\frac{{{value.numerator}}}{{{value.denominator}}}") == value


@given(st.text(max_size=200))
def test_any_text_gives_a_number_or_none(text: str) -> None:
    assert last_number(text) is None or any(c in "0123456789" for c in text)
    assert whole_number(text) in (None, last_number(text))


@given(st.fractions(), st.fractions(), st.floats(0, 10))
def test_tolerance(answer: Fraction, right: Fraction, tolerance: float) -> None:
    assert numbers_equal(answer, right, tolerance) == (
        abs(answer - right) <= Fraction(tolerance) * max(Fraction(1), abs(right))
    )
    assert numbers_equal(answer, right, 0.0) == (answer == right)


def test_tolerance_includes_its_edge() -> None:
    assert numbers_equal(Fraction(3, 2), Fraction(1), 0.5)
    assert not numbers_equal(Fraction(15001, 10000), Fraction(1), 0.5)
    assert numbers_equal(Fraction(150), Fraction(100), 0.5)


@pytest.mark.parametrize(
    ("value", "number"),
    [(7, 7), (0.1, Fraction(1, 10)), ("7", None), (True, None), (None, None), ([1], None), (float("inf"), None),
     (float("nan"), None), (1e300, 10**300), (1 << 2000, None)],
)  # fmt: skip
def test_numbers_of_json_values(value: object, number: object) -> None:
    assert number_of(value) == number


@pytest.mark.parametrize(
    "part",
    [
        "1",
        "1,",
        "1 / ",
        "111,",
        "1.1",
        "\\frac{",
        "\\frac{1}{",
        "-",
        ".",
        " ",
        "1 ",
        "1e",
        "1x10^",
        "1,111",
        "$",
        "1 x ",
        "1 1/",
        "1 1/1 ",
        "1 \\frac{1}{",
        "^1 m",
    ],
)
def test_linear_time(part: str) -> None:
    assert grows_linearly(last_number, lambda size: part * (size // len(part)))
    assert grows_linearly(last_number, lambda size: "1" + part * (size // len(part)) + "x")
    assert grows_linearly(_answer_number, lambda size: part * (size // len(part)))


def test_a_million_digits() -> None:
    assert last_number("1" * 10**6) is None
    assert last_number("1" * 10**6 + " then 5") == 5
