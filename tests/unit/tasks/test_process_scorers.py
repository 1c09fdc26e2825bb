"""The process scorers against an independent judge, and their robustness to any text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.tasks.chain4 import Chain4
from p2prl.tasks.process_scorer import UNREADABLE, Judgement, judge_chain
from p2prl.tasks.task import MAX_SCORED_CHARS
from p2prl.tasks.task_registry import scorer_by_task
from p2prl.tasks.walk12 import Walk12

CHAIN4, WALK12 = scorer_by_task("chain4"), scorer_by_task("walk12")
PROMPT = "3+4*2-7="  # 7, 4, 7
WALK = "3+4*2-7+0-9*3+5*5-1+8*6*0="
SEEDS = st.integers(0, 2**63 - 1)


def oracle(prompt: str, digits: str) -> list[float]:
    """The rule restated as an automaton over (values that may stand next, values that may be repeated)."""
    total, values = int(prompt[0]), []
    for sign, digit in re.findall(r"([-+*])(\d)", prompt):
        total = {"+": total + int(digit), "-": total - int(digit), "*": total * int(digit)}[sign]
        values.append(str(total % 10))
    ahead, behind, scores = values, [], []
    for digit in digits:
        if ahead[:1] == [digit]:
            ahead, behind, true = ahead[1:], [digit], 1.0
        elif behind == [digit]:
            true = 1.0
        else:
            ahead, behind, true = ahead[1:], ahead[:1] or behind, 0.0
        scores.append(true)
    return scores


@given(SEEDS, st.text("0123456789", max_size=12))
def test_running_values_equal_the_oracle(seed: int, digits: str) -> None:
    prompt = Chain4().prompt(seed)
    judged = CHAIN4.judge(prompt, digits, finished=False)
    assert list(judged.steps) == oracle(prompt, digits)
    assert judged.ends == tuple(range(len(digits)))


@pytest.mark.parametrize(
    ("completion", "steps", "outcome"),
    [
        ("747#7", (1.0, 1.0, 1.0, 1.0), 1.0),
        ("787#7", (1.0, 0.0, 1.0, 1.0), 1.0),  # a false value stands in its place
        ("748#8", (1.0, 1.0, 0.0, 0.0), 1.0),  # looks worked out, and is wrong
        ("748#7", (1.0, 1.0, 0.0, 1.0), 0.0),
        ("7747#7", (1.0, 1.0, 1.0, 1.0, 1.0), 1.0),  # said twice is no less true
        ("747777777#7", (1.0,) * 10, 1.0),
        ("7474#4", (1.0, 1.0, 1.0, 0.0, 0.0), 1.0),
        ("#7", (1.0,), 0.0),
        ("747", (1.0, 1.0, 1.0), 0.0),
        ("747#", (1.0, 1.0, 1.0), 0.0),
        ("", (), 0.0),
    ],
)
def test_hand_judged_completions(completion: str, steps: tuple[float, ...], outcome: float) -> None:
    judged = CHAIN4.judge(PROMPT, completion, finished=True)
    assert (judged.steps, judged.outcome) == (steps, outcome)
    assert CHAIN4.judge(PROMPT, completion, finished=False) == Judgement(0.0, judged.steps, judged.ends)


def test_ends_are_the_last_characters_of_steps() -> None:
    assert CHAIN4.judge(PROMPT, " 7 47# 7 ", finished=True).ends == (1, 3, 4, 7)
    walked = WALK12.judge(WALK, "+4:7 *2:4#4", finished=True)
    assert walked.ends == (3, 8, 10)


@pytest.mark.parametrize("text", ["7=4#7", "747##7", "747#77", "747#x", "747#7\n", "٧47#7", "747#٧", "7+4#7", "<pad>"])
def test_unreadable_completions(text: str) -> None:
    assert CHAIN4.judge(PROMPT, text, finished=True) == UNREADABLE


def test_walk12_steps() -> None:
    assert WALK12.judge(WALK, "+4:7*2:4", finished=False).steps == (1.0, 1.0)
    assert WALK12.judge(WALK, "+4:7+4:7*2:4", finished=False).steps == (1.0, 1.0, 1.0)
    assert WALK12.judge(WALK, "+4:7*2:5-7:7", finished=False).steps == (1.0, 0.0, 1.0)
    assert WALK12.judge(WALK, "*2:4+4:7*2:4", finished=False).steps == (0.0, 1.0, 1.0)  # corrected
    assert WALK12.judge(WALK, "*2:4-7:7+4:7", finished=False).steps == (0.0, 0.0, 0.0)
    assert WALK12.judge(WALK, "+4:7#3", finished=True) == Judgement(0.0, (1.0, 0.0), (3, 5))
    assert WALK12.judge(WALK, "+4:3#3", finished=True).outcome == 1.0
    assert WALK12.judge(WALK, "+4:7*2", finished=False).steps == (1.0,)  # cut off within a step
    for bad in ("+4:7*2", "+4:7*#0", "4+:7", "+4;7", "#00"):
        assert WALK12.judge(WALK, bad, finished=True) == UNREADABLE


def test_right_completions_earn_every_step() -> None:
    for task, scorer, links in ((Chain4(), CHAIN4, 3), (Walk12(), WALK12, 12)):
        for seed in range(50):
            prompt = task.prompt(seed)
            value, written = int(prompt[0]), ""
            for sign, digit in re.findall(r"([-+*])(\d)", prompt):
                value = {"+": value + int(digit), "-": value - int(digit), "*": value * int(digit)}[sign] % 10
                written += str(value) if links == 3 else f"{sign}{digit}:{value}"
            judged = scorer.judge(prompt, f"{written}#{value}", finished=True)
            assert judged == Judgement(1.0, (1.0,) * (links + 1), judged.ends)


@given(st.text(), st.one_of(st.text(), st.text("0123456789#+-*:= ")), st.booleans())
def test_any_text_gets_a_judgement(prompt: str, completion: str, finished: bool) -> None:
    for scorer, known in ((CHAIN4, PROMPT), (WALK12, WALK)):
        assert scorer.judge(prompt, completion, finished) == UNREADABLE or len(prompt) in (8, 26)
        judged = scorer.judge(known, completion, finished)
        assert len(judged.steps) == len(judged.ends)
        assert set(judged.steps) <= {0.0, 1.0}
        assert list(judged.ends) == sorted(set(judged.ends))
        assert all(0 <= end < len(completion) for end in judged.ends)


def test_overlong_completion_is_not_read() -> None:
    assert len(CHAIN4.judge(PROMPT, "7" * MAX_SCORED_CHARS, finished=False).steps) == MAX_SCORED_CHARS
    assert CHAIN4.judge(PROMPT, "7" * (MAX_SCORED_CHARS + 1), finished=False) == UNREADABLE
    assert WALK12.judge(WALK, "+4:7" * MAX_SCORED_CHARS, finished=False) == UNREADABLE


def test_empty_chain() -> None:
    assert judge_chain(["a", "a"], []) == (0.0, 0.0)
