"""walk12: its prompts, its grammar, its scores and its flawed demonstrations."""

from __future__ import annotations

import collections
import operator

import pytest

from p2prl.errors import ConfigError, LocalProtocolError
from p2prl.tasks.digit_chains import DemonstrationFaults
from p2prl.tasks.task import FAILED
from p2prl.tasks.task_registry import task_by_name
from p2prl.tasks.walk12 import SYMBOLS, WALK12, Walk12, demonstration

TASK = Walk12()
PERFECT = DemonstrationFaults(shortcut=0.0, multiply_as_add=0.0, step_error=0.0)
PROMPT = "3+4*2-7+0-9*3+5*5-1+8*6*0="


def worked(prompt: str) -> tuple[str, int]:
    """The ideal completion, by Python's own arithmetic."""
    value, text = int(prompt[0]), ""
    for i in range(1, len(prompt) - 1, 2):
        step = prompt[i : i + 2]
        operate = {"+": operator.add, "-": operator.sub, "*": operator.mul}[step[0]]
        value = operate(value, int(step[1])) % 10
        text += f"{step}:{value}"
    return f"{text}#{value}", value


def test_prompts_are_fixed_by_the_seed() -> None:
    assert task_by_name("walk12").task == TASK
    prompts = [TASK.prompt(seed) for seed in range(2000)]
    assert len(set(prompts)) == 2000
    assert {len(prompt) for prompt in prompts} == {26}
    operators = collections.Counter(prompt[i] for prompt in prompts for i in range(1, 25, 2))
    assert set(operators) == set("+-*")
    assert all(abs(count / 24_000 - 1 / 3) < 0.015 for count in operators.values())


def test_ideal_completions_score_one() -> None:
    for seed in range(100):
        prompt = TASK.prompt(seed)
        completion, _ = worked(prompt)
        score = TASK.score(prompt, completion, finished=True)
        assert score.reward == 1.0
        assert 48 <= len(completion) < WALK12.max_new_tokens
        assert set(prompt + completion) <= set(SYMBOLS)


def test_only_readable_right_answers_score() -> None:
    completion, value = worked(PROMPT)
    wrong = str((value + 1) % 10)
    assert TASK.score(PROMPT, completion, finished=False).reward == 0.0
    assert TASK.score(PROMPT, completion[:-1] + wrong, finished=True).reward == 0.0
    assert TASK.score(PROMPT, f"#{value}", finished=True).reward == 1.0
    assert TASK.score(PROMPT, f"-9:1#{value}", finished=True).reward == 1.0
    assert TASK.score(PROMPT, " ".join(completion), finished=True).reward == 1.0
    for bad in ("", "#", f"#{value}{value}", f"##{value}", f"+4:#{value}", f"+4;7#{value}", f"4+:7#{value}",
                f"+4:77#{value}", completion + "=", f"#{'²'}", f"#{'٣'}", completion * 3000):  # fmt: skip
        assert TASK.score(PROMPT, bad, finished=True) == FAILED


@pytest.mark.parametrize("prompt", ["", "3+4*2-7=", PROMPT[:-1], PROMPT.replace("*", "/"), "x" + PROMPT[1:]])
def test_other_prompts_fail(prompt: str) -> None:
    assert TASK.score(prompt, "#1", finished=True) == FAILED


def test_faultless_demonstrations_are_correct() -> None:
    for seed in range(100):
        prompt, completion = demonstration(seed, PERFECT)
        assert prompt == TASK.prompt(seed)
        assert completion == worked(prompt)[0]


def test_fault_rates() -> None:
    count = 4000
    made = [
        demonstration(seed, DemonstrationFaults(shortcut=0.4, multiply_as_add=0.45, step_error=0.0))
        for seed in range(count)
    ]
    short = [completion for _, completion in made if len(completion) < 50]
    assert abs(len(short) / count - 0.4) < 0.03
    assert {len(completion) for completion in short} == {4 * kept + 2 for kept in range(12)}
    wrong = total = 0
    for prompt, completion in made:
        before = int(prompt[0])
        for i in range(0, len(completion) - 2, 4):
            sign, digit, value = completion[i], int(completion[i + 1]), int(completion[i + 3])
            true = {"+": before + digit, "-": before - digit, "*": before * digit}[sign] % 10
            if sign == "*" and digit in (6, 7) and true != (before + digit) % 10:
                total += 1
                wrong += value == (before + digit) % 10
            else:
                assert value == true
            before = value
    assert abs(wrong / total - 0.45) < 0.05


def test_share_of_right_demonstrations() -> None:
    rewards = [TASK.score(*demonstration(seed), finished=True).reward for seed in range(3000)]
    assert 0.4 < sum(rewards) / 3000 < 0.55


def test_illegal_rates_and_seeds_are_refused() -> None:
    with pytest.raises(ConfigError, match="shortcut"):
        DemonstrationFaults(shortcut=1.5, multiply_as_add=0.0, step_error=0.0)
    with pytest.raises(LocalProtocolError):
        demonstration(-1)
