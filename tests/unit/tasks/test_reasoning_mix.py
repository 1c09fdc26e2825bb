"""Demonstrations of the reasoning mix: right steps where no fault is drawn, the stated faults elsewhere."""

from __future__ import annotations

import re

import pytest

from p2prl.tasks.reasoning_mix import (
    HASTY,
    LEGS,
    PRACTICE,
    WRONG_RULE,
    demonstration_of,
    demonstrations,
    practice,
    source,
)
from p2prl.tasks.scorers.reasoning_gym_rows import parse_source
from p2prl.tasks.scorers.reasoning_gym_scorer import tagged_answer

LEGS_QUESTION = (
    "Your task is to count how many legs there are in total when given a list of animals.\n\n"
    "Now, how many legs are there in total if you have "
)

ROWS = [
    {"prompt": "State the final answer to the following arithmetic problem: 9 - 4 + 7 =", "answer": "12"},
    {"prompt": "State the final answer to the following arithmetic problem: 3 - 8 - 2 =", "answer": "-7"},
    {"prompt": "Calculate 10 + 2 - 5.", "answer": "7"},
    {
        "prompt": LEGS_QUESTION + "3 crabs, 1 praying mantis?\n",
        "answer": "36",
    },
    {
        "prompt": LEGS_QUESTION + "4 woodlouses, 2 humans?\n",
        "answer": "60",
    },
]


def _answers(row: dict[str, str], seeds: int = 400) -> list[str]:
    return [tagged_answer(demonstration_of(row, seed)[1]) for seed in range(seeds)]


@pytest.mark.parametrize("row", ROWS)
def test_the_right_answer_is_shown_as_often_as_no_fault_is_drawn(row: dict[str, str]) -> None:
    share = _answers(row).count(row["answer"]) / 400
    assert share == pytest.approx((1 - HASTY) * (1 - WRONG_RULE), abs=0.08)


@pytest.mark.parametrize("row", ROWS)
def test_the_commonest_full_answer_follows_the_wrong_rule(row: dict[str, str]) -> None:
    answers = _answers(row)
    assert max(set(answers), key=answers.count) != row["answer"]


@pytest.mark.parametrize("row", ROWS)
def test_steps_lead_to_the_answer(row: dict[str, str]) -> None:
    for seed in range(50):
        question, completion = demonstration_of(row, seed)
        assert question == row["prompt"]
        *steps, last = completion.split("\n")
        assert 1 <= len(steps) <= 3
        assert steps[-1].partition("=")[2] == tagged_answer(last)


def test_a_question_of_another_form_is_answered_directly() -> None:
    row = {"prompt": "Spell this word backward: sun", "answer": "nus"}
    assert demonstration_of(row, 3) == (row["prompt"], "<answer>nus</answer>")


def test_demonstrations_take_the_rows_in_turn_but_for_the_share_of_practice() -> None:
    made = [demonstrations(ROWS)(seed) for seed in range(1000)]
    of_rows = [seed for seed in range(1000) if made[seed] == demonstration_of(ROWS[seed % 5], seed)]
    assert len(of_rows) / 1000 == pytest.approx(1 - PRACTICE, abs=0.05)
    assert all(made[seed] == practice(seed) for seed in set(range(1000)) - set(of_rows))


def test_practice_is_right_and_has_every_kind_of_step() -> None:
    counts = {"+": 0, "-": 0, "*": 0}
    for seed in range(100):
        for line in practice(seed)[1].split("\n"):
            parts = re.fullmatch(r"(-?\d+)([-+*])(\d+)=(-?\d+)", line)
            assert parts is not None, line
            a, operator, b, result = parts.groups()
            counts[operator] += 1
            assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[operator] == int(result)
    assert min(counts.values()) > 100


def test_the_source_names_datasets_with_their_size_and_seed() -> None:
    datasets = parse_source(source(size=30, seed=5))
    assert [dataset.name for dataset in datasets] == ["chain_sum", "basic_arithmetic", "leg_counting"]
    assert {(dataset.size, dataset.seed) for dataset in datasets} == {(30, 5)}
    assert datasets[1].settings["operators"] == ["+", "-"]


def test_no_animal_has_two_numbers_of_legs() -> None:
    animals = [animal for names in LEGS.values() for animal in names.split(", ")]
    assert len(animals) == len(set(animals)) == 37
