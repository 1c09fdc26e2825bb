"""Built-in scorers that compare with a row's answer: what each gives 1, what it gives 0, hostile and unusable text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.tasks.row_scorer import RowScorer
from p2prl.tasks.scorers.answer_text import (
    MAX_PLAIN_CHARS,
    UnusableRowError,
    after_hash,
    answers_equal,
    last_boxed,
    marked_answer,
)
from p2prl.tasks.scorers.build import RowCheck, build_scorer
from p2prl.tasks.scorers.scorer_options import scoring_from_options
from p2prl.tasks.scorers.spec import scoring_spec
from p2prl.tasks.task import MAX_SCORED_CHARS
from tests.unit.tasks.scorers.linear_time import grows_linearly

LIBRARY_FREE = ("exact", "contains", "number", "boxed", "hash", "choice", "json:column=answer")


def scorer(text: str) -> RowScorer:
    return build_scorer(scoring_spec(scoring_from_options([text])[0]), None)


def check(text: str) -> RowCheck:
    return RowCheck(scoring_spec(scoring_from_options([text])[0]))


GSM8K = "She sells 16 - 3 = <<16-3=13>>13 eggs.\nShe makes 13 * 2 = $26.\n#### 1,026"
MATH = r"We have $x^2 = 4$, so the answer is $\boxed{\left(3, \frac{\pi}{2}\right)}$."


@pytest.mark.parametrize(
    ("spec", "answer", "completion", "value"),
    [
        ("exact", "Paris", " Paris\n", 1),
        ("exact", "New  York", "New\nYork", 1),
        ("exact", "Paris", "paris", 0),
        ("exact", "Paris", "Paris.", 0),
        ("exact:ignore_case=yes", "Paris", "PARIS", 1),
        ("exact", 7, "7", 1),
        ("exact", 7.0, "7", 1),
        ("exact", 7.5, "7.5", 1),
        ("exact:after=</think>", "Paris", "<think>Rome?</think> Paris", 1),
        ("exact:after=</think>", "Paris", "Paris", 0),
        ("exact:after=</think>", "Paris", "</think>Paris</think>Rome", 0),
        ("contains", "Paris", "It is  Paris, I think", 1),
        ("contains", "Paris", "It is paris", 0),
        ("contains:ignore_case=yes", "Paris", "It is paris", 1),
        ("contains:where=start", "It is", "It  is Paris", 1),
        ("contains:where=start", "Paris", "It is Paris", 0),
        ("contains:where=end", "Paris", "It is Paris ", 1),
        ("contains:where=end", "It is", "It is Paris", 0),
        ("number", GSM8K, "so she makes $1,026 a day.", 1),
        ("number", GSM8K, "so she makes 26", 0),
        ("number", MATH.replace("3, \\frac{\\pi}{2}", "8"), "8", 1),
        ("number", 0.75, "3/4", 1),
        ("number", "0.333333", "1/3", 0),
        ("number:tolerance=1e-5", "0.333333", "1/3", 1),
        ("number:tolerance=0.01", "1000", "1010", 1),
        ("number:tolerance=0.01", "1000", "1010.1", 0),
        ("number", "18 apples", "eighteen, 18.0", 1),
        ("number", "18", "none", 0),
        ("number", "12 m^2", "an area of 12 m^2", 1),
        ("number", "2", "an area of 12 m^2", 0),
        ("number", "1/2", r"so it is $\frac12$", 1),
        ("number", "1234567", "1\u202f234\u202f567 people", 1),
        ("number:after=</think>", "4", "<think>2+2=4</think> four", 0),
        ("boxed", "1234", r"so \boxed{1{,}234}", 1),
        ("boxed", "1234", r"\boxed{1,234} and 7", 1),
        ("boxed", "1234", r"\boxed{7} \boxed{1234.0}", 1),
        ("boxed", "7", r"\boxed{7} \boxed{1234.0}", 0),
        ("boxed", "7", r"\boxed{x=7}", 0),
        ("boxed", "7", "7", 0),
        ("boxed", "7", r"\boxed{7", 0),
        ("boxed", "1/2", r"\boxed{\dfrac{1}{2}}", 1),
        ("boxed", MATH, r"\boxed{(3,\frac{\pi}{2})}", 1),
        ("boxed", MATH, r"\boxed{(3,\frac{\pi}{3})}", 0),
        ("boxed", r"\text{odd}", r"\boxed{odd}", 1),
        ("boxed:tolerance=0.1", "10", r"\boxed{10.9}", 1),
        ("hash", GSM8K, "13*2=26\n#### 1026", 1),
        ("hash", GSM8K, "#### 1026\nThat is it.", 1),
        ("hash", GSM8K, "1026", 0),
        ("hash", GSM8K, "#### about 1026", 0),
        ("hash", GSM8K, "#### 1026 #### 7", 0),
        ("hash", "Paris", "####Paris", 1),
        ("hash", "Paris", "####", 0),
        ("choice", "B", "Answer: B", 1),
        ("choice", 1, "(B)", 1),
        ("choice", 1, "(A)", 0),
        ("choice", "(B)", "so B", 0),
        ("json:column=answer", '{"a": 1, "b": [true, null]}', '{"b":[true,null],"a":1.0}', 1),
        ("json:column=answer", '{"a": 1}', '```json\n{"a": 1}\n```', 1),
        ("json:column=answer", '{"a": 1}', '{"a": true}', 0),
        ("json:column=answer", '{"a": 1}', '{"a": 1, "b": 2}', 0),
        ("json:column=answer", "[1, 2]", "[1, 2, 3]", 0),
        ("json:column=answer", "[1, 2]", "[2, 1]", 0),
        ("json:column=answer", [1, "x"], '[1, "x"]', 1),
        ("json", None, "17", 1),
        ("json", None, "Here: 17", 0),
        ("json", None, "NaN", 0),
        ("json", None, "[Infinity]", 0),
        ("json", None, "1e999", 0),
        ("json", None, "1" * 4_301, 0),
        ("json", None, "[" * 64 + "]" * 64, 1),
        ("json", None, "[" * 65 + "]" * 65, 0),
        ("json", None, '"' + "[" * 65 + '\\""', 1),
        ("json", None, "[" * 100_000, 0),
    ],
)
def test_scores(spec: str, answer: Any, completion: str, value: int) -> None:
    assert scorer(spec).score({"answer": answer}, completion, True) == value


@pytest.mark.parametrize("spec", LIBRARY_FREE)
def test_a_right_answer_scores_1_unless_cut_off(spec: str) -> None:
    row = {"answer": "C" if spec == "choice" else "12"}
    right = check(spec).right_answer(row)
    assert right is not None
    assert check(spec).problem(row) == ""
    assert scorer(spec).score(row, right, True) == 1.0
    assert scorer(spec).score(row, right, False) == 0.0
    tolerant = spec + (",truncated=yes" if ":" in spec else ":truncated=yes")
    assert scorer(tolerant).score(row, right, False) == 1.0
    assert scorer(spec).score(row, "no such answer", True) == 0.0


@pytest.mark.parametrize("excess", [0, 1])
def test_the_longest_text(excess: int) -> None:
    text = " " * (MAX_SCORED_CHARS - 2 + excess) + "42"
    assert scorer("number").score({"answer": 42}, text, True) == 1 - excess


@pytest.mark.parametrize(
    ("spec", "row", "message"),
    [
        ("number", {}, "holds no number"),
        ("number", {"answer": "none"}, "holds no number: 'none'"),
        ("number", {"answer": "5 ####"}, "holds no number"),
        ("number", {"answer": True}, "holds no number"),
        ("exact", {"other": "x"}, "'answer' is missing"),
        ("exact", {"answer": ["x"]}, "holds list"),
        ("exact", {"answer": " "}, "is empty"),
        ("boxed:column=target", {"answer": "x"}, "'target' is missing"),
        ("hash", {"answer": "x ####"}, "nothing after its mark"),
        ("boxed", {"answer": "\\boxed{} "}, "nothing after its mark"),
        ("boxed", {"answer": "Add 2 and 3: \\boxed 5"}, "worked text"),
        ("hash", {"answer": "\\fbox{5}"}, "worked text"),
        ("boxed", {"answer": "\\boxed{5"}, "worked text"),
        ("hash", {"answer": "2+3\n5"}, "worked text"),
        ("boxed", {"answer": "x" * (MAX_PLAIN_CHARS + 1)}, "worked text"),
        ("number", {"answer": "3 4"}, "several numbers: '3 4'"),
        ("number", {"answer": "#### 18 (9+9)"}, "several numbers: '18 (9+9)'"),
        ("choice", {"answer": "K"}, "letter A..J"),
        ("choice", {"answer": 10}, "letter A..J"),
        ("choice", {"answer": "1"}, "letter A..J"),
        ("json:column=answer", {"answer": "{"}, "is no JSON"),
        ("json:column=answer", {}, "is missing"),
    ],
)
def test_rows_without_an_answer(spec: str, row: dict[str, Any], message: str) -> None:
    assert message in check(spec).problem(row)
    with pytest.raises(UnusableRowError):
        scorer(spec).score(row, '"17"', True)


@given(st.text(max_size=300), st.booleans())
def test_any_text_is_scored(text: str, finished: bool) -> None:
    for spec in LIBRARY_FREE:
        row = {"answer": "C" if spec == "choice" else "12"}
        assert scorer(spec).score(row, text, finished) in (0.0, 1.0)


@pytest.mark.parametrize("spec", LIBRARY_FREE)
@pytest.mark.parametrize(
    "part",
    [
        "\\boxed{",
        "{",
        "}",
        "\\",
        "####",
        "(A) ",
        "answer is ",
        "[",
        '"',
        "```\n",
        "\\text{",
        "\\left",
        "\n",
        "a",
        "*(",
        "\\frac{",
        "\\frac1",
        "^{1",
        "B)",
        "\n(B:",
        " ",
        "1 ",
    ],
)
def test_linear_time(spec: str, part: str) -> None:
    row = {"answer": "C" if spec == "choice" else "12"}
    built = scorer(spec)
    assert grows_linearly(
        lambda text: built.score(row, text, True), lambda size: part * (size // len(part)), small=1_000
    )


# --- the parts -----------------------------------------------------------------------------------------------------


@given(
    st.recursive(
        st.text("ab \\$,", max_size=4).filter(lambda t: not t.endswith("\\")),
        lambda inner: st.lists(inner, max_size=3).map(lambda parts: "{" + "".join(parts) + "}"),
    )
)
def test_balanced_boxes(content: str) -> None:
    plain = content.replace("\\", "")
    assert last_boxed(f"\\boxed{{1}} and \\boxed{{{plain}}} }}{{") == plain
    assert last_boxed(f"\\boxed{{{plain}") is None


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("", None),
        (r"\boxed 5", None),
        (r"\boxed{}", ""),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{a}\boxed{b", None),
        (r"\boxed{a\\}", r"a\\"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{[0, 1\} \{2}", r"[0, 1\} \{2"),
    ],
)
def test_boxes(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


def test_marks_of_a_solution() -> None:
    assert after_hash("x\n#### 5\ny") == "5"
    assert after_hash("none") is None
    assert marked_answer(GSM8K) == "1,026"
    assert marked_answer(r"\boxed{3} #### 4") == "4"
    assert marked_answer(r"#### 4 \boxed{3}") == "3"
    assert marked_answer("#### Step 1: set up\nthen \\boxed{42}") == "42"
    assert marked_answer(r"\boxed{42} #### 7 \boxed{8") == "7 \\boxed{8"
    assert marked_answer("plain") == "plain"


@pytest.mark.parametrize("spec", ["boxed", "hash"])
@pytest.mark.parametrize("answer", ["42", "x+1", " x + 1 \n", "y" * MAX_PLAIN_CHARS, "New York", "a\nb \\boxed{c}"])
def test_short_plain_answers_are_answers(spec: str, answer: str) -> None:
    assert check(spec).problem({"answer": answer}) == ""
    right = check(spec).right_answer({"answer": answer})
    assert right is not None
    assert scorer(spec).score({"answer": answer}, right, True) == 1.0


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ("1,234", "1234.0", True),
        ("50\\%", "50", True),
        ("$5", "5", True),
        ("5\\,000", "5000", True),
        ("x+1", "x + 1", True),
        ("x+1", "1+x", False),
        ("5", "five", False),
        ("\\leftarrow", "arrow", False),
        ("90°", "90", True),
        ("2 1/2", "2.5", True),
        ("2 1/2", "10.5", False),
        ("2 1/2", "21/2", False),
        (r"2\frac{1}{2}", "5/2", True),
        ("3 4", "34", False),
        ("3 4", "3  4", True),
        ("3\\,4", "34", False),
        ("3 .4", "3.4", False),
        ("3. 4", "3.4", False),
        ("(1, 2)", "(1,2)", True),
        ("- 5.0", "-5", True),
        ("3 / 4", "0.75", True),
        ("1{,}234", "1234", True),
        ("1,\\!234", "1234", True),
        ("12\\text{ m}^2", "12 m^2", True),
        (r"\frac12", r"\dfrac{1}{2}", True),
        (r"\frac{x}2", r"\tfrac{x}{2}", True),
        (r"\frac{\sqrt2}{2}", r"\dfrac{\sqrt{2}}{2}", True),
        (r"\frac{\sqrt3}3", r"\frac{\sqrt{3}}{3}", True),
        (r"\frac{\sqrt{3}}x", r"\frac{\sqrt{3}}{x}", True),
        (r"\frac1{72}", r"\frac{1}{72}", True),
        (r"\frac12", r"\frac{12}{1}", False),
        (r"90^\circ", "90", True),
        (r"90^{\circ}", "90°", True),
        (r"\$5", "5", True),
        ("x^{2}_{1}", "x^2_1", True),
        ("x^{12}", "x^12", False),
        ("2, 100", "2100", False),
        ("2, 100", "2,100", False),
        ("(2, 100)", "(2,100)", True),
    ],
)
def test_equal_answers(left: str, right: str, equal: bool) -> None:
    assert answers_equal(left, right) is answers_equal(right, left) is equal
