"""Forms in which a text chooses an option's letter, and texts that choose none."""

from __future__ import annotations

import pytest

from p2prl.tasks.scorers.build import RowCheck
from p2prl.tasks.scorers.choice import LETTERS, stated_choice


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize(
    "form",
    [
        "{}", "{}.", "{})", "({})", "[{}]", "**{}**", "Answer: {}", "answer is {}", "The correct answer is ({}).",
        "Answer: **{}**", "I choose option {}.", r"\boxed{{{}}}", r"\boxed{{\text{{{}}}}}", "(A) no. (B) no.\n({}) yes",
        "Answer: A. No, wait. Answer: {}", "(A) was tempting.\nAnswer:\n{}", "ANSWER = {}",
        "**Answer:** {}", "**Answer**: {}", 'The answer is "{}"',
        "<answer>{}</answer>", r"The answer is $\text{{{}}}$.", r"Answer: $\boxed{{{}}}$",
    ],
)  # fmt: skip
def test_forms_of_a_choice(form: str, letter: str) -> None:
    assert stated_choice(form.format(letter)) == letter


@pytest.mark.parametrize("letter", LETTERS)
@pytest.mark.parametrize(
    "form",
    ["{}. Paris", "{}) Paris", "({}) Paris", "**{}.** Paris", "{}: Paris", "({}): Paris", "It is this one:\n {}. Paris",
     "C. Rome\n{}. Paris", "{}. Paris\n\nBecause it is.", "**({})** Paris\n", "{}.\nParis it is"],
)  # fmt: skip
def test_option_lines(form: str, letter: str) -> None:
    assert stated_choice(form.format(letter)) == letter


@pytest.mark.parametrize("letter", "bcJ")
@pytest.mark.parametrize("form", ["{}", "{})", "Answer: {}", "answer is ({})", r"\boxed{{{}}}"])
def test_small_letters(form: str, letter: str) -> None:
    assert stated_choice(form.format(letter)) == letter.upper()


@pytest.mark.parametrize(
    "text",
    ["", "K", "AB", "The answer is a prime.", "Answer: Apple", "A dog", "no answer", "(a) (b)", "Answer: I don't know",
     "so B. Paris", "K. Paris", "B.Paris", "B Paris", "b. paris", "AB. Paris"],
)  # fmt: skip
def test_no_choice(text: str) -> None:
    assert stated_choice(text) is None


CAPITALS = ["Paris", "Rome", "New  York"]


@pytest.mark.parametrize("column", ["choices", "options"])
@pytest.mark.parametrize("options", [CAPITALS, {"text": CAPITALS, "label": ["A", "B", "C"]}])
def test_a_question_whose_options_the_prompt_lacks_is_refused(column: str, options: object) -> None:
    """MMLU's rows have them in a column of their own: a run on them learned to guess letters."""
    check = RowCheck('{"rewards":[{"scorer":"choice","weight":1.0}]}')
    row = {"prompt": "Which is in France?\nA. Paris\nB. Rome", "answer": 0, column: options}
    assert check.problem(row).startswith(f"the column '{column}' holds options that the prompt does not show")
    shown = {**row, "prompt": f"{row['prompt']}\nC. New York"}
    assert check.problem(shown) == ""
    assert check.right_answer(shown) == "Answer: A"


@pytest.mark.parametrize("value", [None, "A or B", 4, [], {}])
def test_a_column_of_that_name_that_lists_no_options_is_none(value: object) -> None:
    check = RowCheck('{"rewards":[{"scorer":"choice","weight":1.0}]}')
    assert check.problem({"prompt": "Which?", "answer": "B", "choices": value}) == ""
