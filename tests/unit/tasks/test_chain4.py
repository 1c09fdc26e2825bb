"""chain4's prompts and scoring against an oracle that computes the chain in a different way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import LocalProtocolError
from p2prl.tasks.chain4 import OPERATIONS, Chain4
from p2prl.tasks.digit_chains import own_chain, parse_prompt, running_values
from p2prl.tasks.task import MAX_SCORED_CHARS, Score

TASK = Chain4()
SEEDS = st.integers(0, 2**63 - 1)


def _oracle(prompt: str) -> list[int]:
    """Running values from unreduced integers, so that the modulo is taken in another place than the task takes it."""
    total, values = int(prompt[0]), []
    for operator, digit in zip(prompt[1:-1:2], prompt[2:-1:2], strict=True):
        total = {"+": total + int(digit), "-": total - int(digit), "*": total * int(digit)}[operator]
        values.append(total % 10)
    return values


def test_prompts_of_known_seeds_never_change() -> None:
    assert [TASK.prompt(seed) for seed in (0, 6, 2**63 - 1)] == ["2*6-8-1=", "6*1*1-3=", "6+0*0*4="]


@given(SEEDS)
def test_correct_chain_scores_one(seed: int) -> None:
    prompt = TASK.prompt(seed)
    values = _oracle(prompt)
    assert list(running_values(own_chain(prompt, OPERATIONS))) == values
    completion = "".join(map(str, values)) + f"#{values[-1]}"
    assert TASK.score(prompt, completion, finished=True) == Score(1.0)
    assert TASK.score(prompt, " ".join(completion), finished=True).reward == 1.0
    assert TASK.score(prompt, completion, finished=False).reward == 0.0


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("747#7", 1.0),
        ("#7", 1.0),
        ("787#7", 1.0),
        ("7#7", 1.0),
        ("74799#7", 1.0),
        ("7=4#3#7", 1.0),
        ("747#6", 0.0),
        ("747", 0.0),
        ("747#77", 0.0),
        ("747#7\n", 0.0),
        ("747#<pad>7", 0.0),
        ("747#٧", 0.0),
        ("٧47#7", 0.0),
        ("", 0.0),
        ("#", 0.0),
    ],
)
def test_hand_scored_completions(completion: str, reward: float) -> None:
    assert TASK.score("3+4*2-7=", completion, finished=True) == Score(reward)


@given(st.text(), st.text(), st.booleans())
def test_any_text_gets_a_score(prompt: str, completion: str, finished: bool) -> None:
    assert 0.0 <= TASK.score(prompt, completion, finished).reward <= 1.0


def test_overlong_completion_is_not_read() -> None:
    assert TASK.score("3+4*2-7=", "1" * (MAX_SCORED_CHARS - 2) + "#7", finished=True).reward == 1.0
    assert TASK.score("3+4*2-7=", "1" * (MAX_SCORED_CHARS - 1) + "#7", finished=True).reward == 0.0


@pytest.mark.parametrize("prompt", ["", "3+4*2-7", "3+4*2-7=1", "3/4*2-7=", "x+4*2-7=", "3+٤*2-7=", " 3+4*2-7="])
def test_other_prompts_fail(prompt: str) -> None:
    assert parse_prompt(prompt, OPERATIONS) is None
    assert TASK.score(prompt, "747#7", finished=True) == Score(0.0)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seed_out_of_range_is_a_local_error(seed: int) -> None:
    with pytest.raises(LocalProtocolError, match="outside"):
        TASK.prompt(seed)


def test_prompts_use_every_symbol_evenly() -> None:
    prompts = [TASK.prompt(seed) for seed in range(3000)]
    operators = "".join(p[1:-1:2] for p in prompts)
    digits = "".join(p[0:-1:2] for p in prompts)
    assert all(abs(operators.count(o) / 9000 - 1 / 3) < 0.02 for o in "+-*")
    assert all(abs(digits.count(str(d)) / 12000 - 0.1) < 0.012 for d in range(10))
