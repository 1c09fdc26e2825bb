"""Numbers of an answer's column: which texts state one number, which state none, and which could mean several."""

from __future__ import annotations

from fractions import Fraction

import pytest

from p2prl.tasks.scorers.answer_text import UnusableRowError
from p2prl.tasks.scorers.judges import Number

SEVERAL, NONE = "several numbers", "holds no number"

TABLE: tuple[tuple[object, str], ...] = (
    # one number, alone or among words
    (42, "42"), (-7, "-7"), (0.75, "3/4"), ("42", "42"), ("-3.50", "-7/2"), (" 7\n", "7"), ("1,234", "1234"),
    ("$1,234.50 a day", "2469/2"), ("5 apples", "5"), ("about 5", "5"), ("x = 5", "5"), ("50%", "50"),
    ("12 m", "12"), ("60 km/h", "60"), ("1.5 x 10^3", "1500"), (r"2 \times 10^{6} m", "2000000"), ("3/4 cup", "3/4"),
    # mixed numbers
    ("2 1/2", "5/2"), ("-2 1/2", "-5/2"), ("3 1/4 cups", "13/4"),
    (r"2\frac{1}{2}", "5/2"), (r"$4\tfrac{2}{3}$", "14/3"),
    # a number with a unit that has exponents
    ("12 m^2", "12"), ("12m^2", "12"), ("12 m^{2}", "12"), ("9.8 m/s^2", "49/5"), ("5 kg m^-1", "5"),
    (r"12\text{ m}^2", "12"), (r"12\,\mathrm{cm}^{3}", "12"), (r"$12~\mathrm{m}^2$", "12"), ("2 1/2 m^2", "5/2"),
    ("5 µm^2", "5"), ("10^6", "1000000"), ("10^{-1} m^2", "1/10"),
    # thousands as LaTeX writes them
    ("1{,}234", "1234"), (r"10,\!000", "10000"), (r"5\,000", "5000"),
    # marked answers: the last mark counts
    ("3 + 4 = 7\n#### 7", "7"), ("#### 12 m^2", "12"), ("#### Step 1: set up\nthen \\boxed{42}", "42"),
    (r"first \boxed{3}, so \boxed{2 1/2}", "5/2"), ("\\boxed{3}\n#### 4", "4"), (r"\boxed{12\text{ cm}^2}", "12"),
    # several numbers
    ("3 4", SEVERAL), ("18 (9+9)", SEVERAL), ("3 apples and 2 pears", SEVERAL), ("5 hours 30 minutes", SEVERAL),
    ("9 + 9 = 18", SEVERAL), ("1,2,3", SEVERAL), ("10-4", SEVERAL), ("2024-11-22", SEVERAL), ("0.5 or 1/2", SEVERAL),
    ("2^10", SEVERAL), (r"3\sqrt{2}", SEVERAL), ("x^2 = 4", SEVERAL), ("it is 12 m^2", SEVERAL),
    ("12 (m^2)", SEVERAL), ("60 mi / 2 h", SEVERAL), ("#### 18 (9+9)", SEVERAL), ("5 000", SEVERAL), ("3x+2", SEVERAL),
    # none
    ("five", NONE), ("x^2", NONE), ("1/0", NONE), ("2 5/3", NONE), ("5 ####", NONE), (True, NONE),
    ([5], NONE), (None, NONE),
)  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), TABLE)
def test_the_number_of_an_answer(value: object, expected: str) -> None:
    judge, row = Number(column="answer"), {"answer": value}
    if expected in (SEVERAL, NONE):
        for use in (judge.right_answer, lambda given: judge.accepts(given, "5")):
            with pytest.raises(UnusableRowError, match=f"'answer'.*{expected}"):
                use(row)
        return
    right = judge.right_answer(row)
    assert right is not None
    assert judge.accepts(row, right)
    assert judge.accepts(row, f"First 17, so it is {expected}.")
    assert not judge.accepts(row, f"First {expected}, so it is {Fraction(expected) + 1}.")


@pytest.mark.parametrize(
    ("answer", "completion", "is_right"),
    [
        ("2 1/2", "so 2 1/2 cups", True),
        ("2 1/2", "so 1/2", False),
        ("2 1/2", "21/2", False),
        ("12 m^2", "it is 2", False),
        ("18", "9+9 = 18", True),
        ("18", "18 (9+9)", False),
        ("1{,}234", r"\boxed{1{,}234}", True),
        ("1234", r"\boxed{1,\!234}", True),
        ("234", r"\boxed{1{,}234}", False),
    ],
)
def test_completions_are_read_by_their_last_number(answer: str, completion: str, is_right: bool) -> None:
    assert Number(column="answer").accepts({"answer": answer}, completion) is is_right
