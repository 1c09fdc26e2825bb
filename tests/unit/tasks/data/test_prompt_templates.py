"""Prompts made of several columns: names in braces are replaced once, and nothing else of a row is reached."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError
from p2prl.tasks.data.prompt_template import PromptTemplate

MMLU = {"question": "Which is odd?", "choices": ["2", "3", "4"], "info": {"subject": "numbers", "year": 2021.0}}


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (r"{question}\n{choices:letters}", "Which is odd?\nA. 2\nB. 3\nC. 4"),
        ("{choices}", "2\n3\n4"),
        ("{info.subject} {info.year}: {question}", "numbers 2021: Which is odd?"),
        (r"{{{question}}}\t{{x}}", "{Which is odd?}\t{x}"),
    ],
)
def test_columns_are_written_into_the_text(text: str, made: str) -> None:
    assert PromptTemplate.read(text).fill(MMLU, place="row 1") == made


@given(st.text(), st.text())
def test_what_a_row_says_is_never_read_as_a_template(one: str, other: str) -> None:
    row = {"a": one, "b": other}
    assert PromptTemplate.read("<{a}|{b}>").fill(row, place="") == f"<{one}|{other}>"


@pytest.mark.parametrize("text", ["no column", "{}", "{question", "question}", "{question:upper}", "{ {question} }"])
def test_braces_that_hold_no_name_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="names no column"):
        PromptTemplate.read(text)


@pytest.mark.parametrize(
    ("text", "row", "said"),
    [
        ("{quesiton}", MMLU, "row 1: there is no column 'quesiton'"),
        ("{question.__class__}", MMLU, "there is no column"),
        ("{info}", MMLU, "'info' is no text, number or list"),
        ("{question:letters}", MMLU, "no list of up to 26 texts"),
        ("{choices:letters}", {"choices": ["x"] * 27}, "no list of up to 26 texts"),
        ("{choices}", {"choices": [["x"]]}, "no text, number or list"),
        ("{choices}", {"choices": []}, "no text, number or list"),
        ("{a}", {"a": None}, "no text, number or list"),
        ("{a}", {"a": True}, "no text, number or list"),
    ],
)
def test_rows_that_do_not_fit_are_named(text: str, row: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PromptTemplate.read(text).fill(row, place="row 1")
