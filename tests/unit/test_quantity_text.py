"""Numbers as text: three significant digits, units that leave few digits before the point, and no false 0 or 100 %."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.quantity_text import count, credit, percent, quantity, size_text

FACTORS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Z": 1e21, "Y": 1e24}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (1_000, "1,000"),
        (9_999, "9,999"),
        (9_999.6, "10 k"),
        (10_000, "10 k"),
        (12_345, "12.3 k"),
        (999_499, "999 k"),
        (1_000_000, "1 M"),
        (1_234_567, "1.23 M"),
        (-12_345, "-12.3 k"),
        (2_500_000_000, "2.5 G"),
        (1e12, "1 T"),
        (5.5e15, "5,500 T"),
        (0.5, "0.5"),
        (0.000123456, "0.000123"),
        (1.23456, "1.23"),
        (123.456, "123"),
        (1e-20, "0"),
    ],
)
def test_quantities(value: float, text: str) -> None:
    assert quantity(value) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (99_940, "99.9 kB"),
        (100_000, "100 kB"),
        (999_400, "999 kB"),
        (999_500, "1.0 MB"),
        (1_500_000, "1.5 MB"),
        (250e6, "250 MB"),
        (999.6e6, "1.0 GB"),
        (26.44e9, "26.4 GB"),
        (1_234e9, "1,234.0 GB"),
    ],
)
def test_sizes(size_bytes: float, text: str) -> None:
    assert size_text(size_bytes) == text


@pytest.mark.parametrize(
    ("petaflop", "text"),
    [
        (0.0, "0"),
        (1e-15, "1 FLOP"),
        (2.5e-13, "250 FLOP"),
        (1.5e-12, "1.5 kFLOP"),
        (0.001, "1 TFLOP"),
        (0.9994, "999 TFLOP"),
        (0.9996, "1 PFLOP"),
        (1.0, "1 PFLOP"),
        (42.0, "42 PFLOP"),
        (1_234.0, "1.23 EFLOP"),
        (1e6, "1 ZFLOP"),
        (3.14159e9, "3.14 YFLOP"),
        (1e13, "10,000 YFLOP"),
    ],
)
def test_credit(petaflop: float, text: str) -> None:
    assert credit(petaflop) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 %"),
        (0.00001, "0.00 %"),
        (0.0004, "0.04 %"),
        (0.001, "0.1 %"),
        (0.0099, "1.0 %"),
        (0.01, "1 %"),
        (0.5, "50 %"),
        (0.99, "99 %"),
        (0.9901, "99.0 %"),
        (0.999, "99.9 %"),
        (0.9995, "99.95 %"),
        (1.0, "100 %"),
        (1.5, "150 %"),
    ],
)
def test_shares(value: float, text: str) -> None:
    assert percent(value) == text


def value_of(text: str) -> float:
    """The number that a text says."""
    found = re.fullmatch(r"(-?[\d,]+(?:\.\d+)?)(?: ([kMGTPEZY]?))?", text)
    assert found is not None, text
    return float(found[1].replace(",", "")) * FACTORS[found[2] or ""]


@given(st.floats(1e-9, 1e15) | st.floats(-1e15, -1e-9) | st.integers(-(10**15), 10**15))
def test_a_quantity_is_right_in_its_first_three_digits(value: float) -> None:
    assert value_of(quantity(value)) == pytest.approx(value, rel=0.005, abs=1e-12)


@given(st.floats(1e-15, 1e11))
def test_credit_is_right_in_its_first_three_digits_with_at_most_three_before_the_point(petaflop: float) -> None:
    text = credit(petaflop)
    assert value_of(text.removesuffix("FLOP").strip()) == pytest.approx(1e15 * petaflop, rel=0.006)
    assert len(text.split(" ", maxsplit=1)[0].split(".")[0]) <= 3 or "YFLOP" in text


@given(st.integers(0, 10**13))
def test_a_size_is_right_in_its_first_digits(size_bytes: int) -> None:
    number, unit = size_text(size_bytes).split(" ")
    factor = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]
    assert float(number.replace(",", "")) * factor == pytest.approx(size_bytes, rel=0.05, abs=0.5)
    assert unit in ("B", "GB") or 1 <= float(number) < 1000


def test_digits_stand_in_groups_of_three() -> None:
    assert [count(value) for value in (0, 999, 1_000, 1_234_567, -1_000)] == [
        "0",
        "999",
        "1,000",
        "1,234,567",
        "-1,000",
    ]
