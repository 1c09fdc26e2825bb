"""countdown: prompts have solutions, the grammar agrees with Python on what it accepts, and refuses everything else."""

from __future__ import annotations

import ast
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import LocalProtocolError
from p2prl.tasks.countdown import (
    COUNTDOWN,
    MAX_EXPRESSION_CHARS,
    Countdown,
    demonstration,
    evaluate,
    parse_prompt,
    solution_of,
    stated_expression,
)

TASK = Countdown()
SEEDS = st.integers(0, 2**63 - 1)
PROMPT = (
    "Make 46 with 3, 10 and 16: use each number once, and + - * / and brackets. End with Answer: and the expression."
)


def reward(completion: str, finished: bool = True) -> float:
    return TASK.score(PROMPT, completion, finished).reward


@given(SEEDS)
def test_every_prompt_has_the_solution_it_was_made_from(seed: int) -> None:
    solution, target = solution_of(seed)
    prompt = TASK.prompt(seed)
    assert len(prompt) == len(PROMPT)
    assert parse_prompt(prompt) == (target, tuple(sorted(solution.numbers)))
    assert TASK.score(prompt, f"Answer: {solution.expression()}", True).reward == 1.0
    assert TASK.score(prompt, f"Answer: {solution.expression()}", False).reward == 0.0
    assert TASK.score(prompt, f"Answer: {solution.expression()}+0", True).reward == 0.0


@given(SEEDS)
def test_demonstrations_calculate_truly(seed: int) -> None:
    prompt, completion = demonstration(seed)
    assert prompt == TASK.prompt(seed)
    assert set(prompt + completion) <= set(COUNTDOWN.small_model.symbols if COUNTDOWN.small_model else "")
    assert len(completion) < COUNTDOWN.max_new_tokens
    steps, _, answer = completion.partition(". Answer: ")
    first, second = steps.split(", ")
    for step in (first, second):
        left, _, right = step.partition("=")
        assert oracle(left) == oracle(right)
    value, _ = evaluate(answer) or (None, ())
    assert value == oracle(second.partition("=")[2])


def test_share_of_right_demonstrations() -> None:
    rewards = [TASK.score(*demonstration(seed), True).reward for seed in range(2_000)]
    assert 0.5 < sum(rewards) / 2_000 < 0.6
    assert all(TASK.score(*demonstration(seed, 0.0), True).reward == 1.0 for seed in range(200))


def oracle(text: str) -> Fraction:
    """Value by Python's own grammar."""
    return _value(ast.parse(text, mode="eval").body)


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand)
    if isinstance(node, ast.Constant):
        return Fraction(str(node.value))
    assert isinstance(node, ast.BinOp), "another expression"
    left, right = _value(node.left), _value(node.right)
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
    return left / right


def joined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    forms = st.sampled_from(["({}{}{})", "{} {}{}"])
    return st.builds(str.format, forms, inner, st.sampled_from("+-*/"), inner)


@given(st.recursive(st.integers(0, 99).map(str), joined, max_leaves=8))
def test_values_are_pythons(expression: str) -> None:
    try:
        expected = oracle(expression)
    except ZeroDivisionError:
        assert evaluate(expression) is None
        return
    result = evaluate(expression)
    assert result is not None
    assert result[0] == expected
    assert math.prod(result[1]) == math.prod(
        int(t) for t in "".join(c if c.isdigit() else " " for c in expression).split()
    )


@given(st.text("0123456789+-*/() x.", max_size=30))
def test_nothing_else_has_a_value(text: str) -> None:
    result = evaluate(text)
    if result is None:
        return
    spaced = " ".join(str(int(t)) if t.isdigit() else t for t in _tokens(text))
    assert oracle(spaced) == result[0]


def _tokens(text: str) -> list[str]:
    for symbol in "+-*/()":
        text = text.replace(symbol, f" {symbol} ")
    return text.split()


@pytest.mark.parametrize(
    "completion",
    [
        "Answer: (3*10)+16",
        "Answer: 3*10+16",
        "Answer:16 + 10 * 3",
        "3*10=30, 30+16=46. Answer: (3*10)+16 = 46.",
        "Answer: 1. Or rather:\nAnswer: 10×3+16\n",
        "Answer: ((((3)))*10+(16))",
        "Answer: 3*10+16.",
    ],
)
def test_right_answers(completion: str) -> None:
    assert reward(completion) == 1.0
    assert reward(completion, finished=False) == 0.0


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "(3*10)+16",
        "Answer:",
        "Answer: 46",
        "Answer: 3*10+16+3-3",
        "Answer: 3*10",
        "Answer: 3+10+16",
        "Answer: 3*10+16=47",
        "Answer: 3*10+16=46=46",
        "Answer: 3*10+16 because",
        "Answer: 3*10+16; 5",
        "Answer: 3*10+16\nThat is it",
        "Answer: -3*-10+16",
        "Answer: 3*10+16/",
        "Answer: 3*10+(16",
        "Answer: 3*10+16)",
        "Answer: 3 * 1 0 + 16",
        "Answer: 3*10+1 6",
        "Answer: 310+16",
        "Answer: 3**10+16",
        "Answer: 3//10+16",
        "Answer: ３*10+16",
        "Answer: 16/(3-3)",
        "Answer: __import__('os').getpid()",
        "Answer: 46 if 3 else 10+16",
        "answer: 3*10+16",
        "Answer: 3*10+16 Answer: 1",
        "Answer: " + "(" * 50 + "3*10+16" + ")" * 50,
    ],
)
def test_wrong_answers(completion: str) -> None:
    assert reward(completion) == 0.0


@pytest.mark.parametrize("excess", [0, 1])
def test_longest_answer(excess: int) -> None:
    expression = "3*10+16"
    completion = "Answer:" + " " * (MAX_EXPRESSION_CHARS - len(expression) + excess) + expression
    assert reward(completion) == 1 - excess
    assert reward(" " * (131_072 + excess - len("Answer:3*10+16")) + "Answer:3*10+16") == 1 - excess


@pytest.mark.parametrize(
    "prompt",
    ["", PROMPT[:-1], PROMPT + " ", PROMPT.replace("46", "9"), PROMPT.replace("46", "100"),
     PROMPT.replace(" 3,", " 11,"), PROMPT.replace("16", "26"),
     PROMPT.replace("10 and 16", "16 and 10"), PROMPT.replace("46", "٤٦")],
)  # fmt: skip
def test_foreign_prompts(prompt: str) -> None:
    assert parse_prompt(prompt) is None
    assert TASK.score(prompt, "Answer: 3*10+16", True).reward == 0.0


@given(st.text(max_size=200))
def test_any_text_scores(text: str) -> None:
    assert reward("Answer:" + text) in (0.0, 1.0)
    assert stated_expression(text.replace("Answer:", ""), 46) is None


@pytest.mark.parametrize("seed", [-1, 1 << 63])
def test_seeds_out_of_range(seed: int) -> None:
    with pytest.raises(LocalProtocolError):
        TASK.prompt(seed)
