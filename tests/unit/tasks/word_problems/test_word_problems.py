"""Word problems: steps follow from the question's numbers, rows do not repeat, demonstrations err as stated."""

from __future__ import annotations

import re
from itertools import islice

import pytest

from p2prl.tasks.word_problems.problems import (
    HASTY,
    TIMES_AS_PLUS,
    demonstration,
    solution,
    word_problem,
    word_problem_rows,
)
from p2prl.tasks.word_problems.templates import KINDS, NUMBER_WORDS

SEEDS = range(600)


def _numbers(question: str) -> list[int]:
    """Numbers of a question in their order, digits or words."""
    words = {word: value for value, word in enumerate(NUMBER_WORDS)}
    tokens = re.findall(r"[a-z]+|\d+", question.lower())
    return [words[token] if token in words else int(token) for token in tokens if token.isdigit() or token in words]


def _oracle(question: str) -> int:
    """The answer, worked out from the sentence alone."""
    numbers = _numbers(question)
    if "together" in question:
        first, second = numbers
        return first + (first * second if "times" in question else first + second)
    a, b, c = numbers
    if "left" in question:
        return a - b * c
    return a * b + c if "in all" in question else a + b - c


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_and_answer_follow_from_the_question(seed: int) -> None:
    problem = word_problem(seed)
    assert problem.answer == _oracle(problem.question)
    results: list[int] = []
    stated = _numbers(problem.question)
    for (left, operator, right), sources in zip(problem.steps, problem.follows, strict=True):
        for value, source in zip((left, right), sources, strict=True):
            assert value == results[source] if source >= 0 else value in stated
        results.append({"+": left + right, "-": left - right, "*": left * right}[operator])
        assert 0 <= results[-1] < 100


def test_every_kind_comes_up_and_numbers_are_digits_and_words() -> None:
    problems = [word_problem(seed) for seed in SEEDS]
    operators = {tuple(step[1] for step in problem.steps) for problem in problems}
    assert operators == {("+", "-"), ("*", "+"), ("+", "+"), ("*", "-")}
    assert len(KINDS) == 5
    spelled = sum(any(f" {word} " in problem.question for word in NUMBER_WORDS) for problem in problems)
    assert 0.2 < spelled / len(problems) < 0.8


def test_rows_have_gsm8ks_shape_and_no_question_twice() -> None:
    rows = list(islice(word_problem_rows(3), 3000))
    assert len({row["question"] for row in rows}) == 3000
    for row in rows[:200]:
        assert set(row) == {"question", "answer"}
        assert int(row["answer"].rpartition("#### ")[2]) == _oracle(row["question"])
        for a, operator, b, result in re.findall(r"(\d+)([-+*])(\d+)=(\d+)", row["answer"]):
            assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[operator] == int(result)


def test_the_seed_fixes_the_rows() -> None:
    first, same, other = (list(islice(word_problem_rows(seed), 20)) for seed in (1, 1, 2))
    assert first == same != other


def test_rows_of_this_version_stay_as_they_are() -> None:
    row = next(iter(word_problem_rows(0)))
    assert row == {
        "question": "Ruth has 3 bags with 3 stickers each and 7 other stickers. "
        "How many stickers does Ruth have in all?",
        "answer": "3*3=9\n9+7=16\n#### 16",
    }


def test_demonstrations_are_hasty_or_add_as_often_as_stated() -> None:
    made = [demonstration(seed) for seed in range(4000)]
    hasty = sum(completion.count("\n") == 1 for _, completion in made) / len(made)
    assert hasty == pytest.approx(HASTY, abs=0.03)
    products = [c for q, c in made if _is_product(q)]
    adds = sum("*" not in completion for completion in products) / len(products)
    assert adds == pytest.approx(TIMES_AS_PLUS, abs=0.03)
    right = sum(int(c.rpartition("#### ")[2]) == _oracle(q) for q, c in made) / len(made)
    assert 0.35 < right < 0.48, "enough are right for sampling to find the way, too few for imitation to"


def test_demonstrations_ask_other_questions_than_the_first_rows() -> None:
    asked = {question for question, _ in map(demonstration, range(2000))}
    shared = sum(row["question"] in asked for row in islice(word_problem_rows(0), 2000))
    assert shared < 40


def test_a_solution_is_what_a_row_holds() -> None:
    assert solution(word_problem(7)).endswith(f"#### {word_problem(7).answer}")


def _is_product(question: str) -> bool:
    return "each" in question.lower() or "times" in question or "into" in question
