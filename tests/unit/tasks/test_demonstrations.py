"""Flawed demonstrations: their fault rates, counted, and what each fault does."""

from __future__ import annotations

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.chain4 import OPERATIONS, Chain4, demonstration
from p2prl.tasks.digit_chains import DemonstrationFaults, own_chain, running_values

TASK = Chain4()
PERFECT = DemonstrationFaults(shortcut=0.0, multiply_as_add=0.0, step_error=0.0)


def first_value(prompt: str) -> str:
    return str(running_values(own_chain(prompt, OPERATIONS))[0])


def test_faultless_demonstrations_are_correct() -> None:
    for seed in range(200):
        prompt, completion = demonstration(seed, PERFECT)
        assert prompt == TASK.prompt(seed)
        assert TASK.score(prompt, completion, finished=True).reward == 1.0
        assert len(completion) == 5


def test_shortcut_rate() -> None:
    completions = [demonstration(seed)[1] for seed in range(6000)]
    shortcuts = [c for c in completions if c.startswith("#")]
    assert abs(len(shortcuts) / 6000 - 0.45) < 0.02
    assert {len(c) for c in shortcuts} == {2}
    assert {len(c) for c in completions} == {2, 5}


def test_multiply_as_add_rate() -> None:
    faults = DemonstrationFaults(shortcut=0.0, multiply_as_add=0.45, step_error=0.0)
    wrong = total = 0
    for seed in range(6000):
        prompt, completion = demonstration(seed, faults)
        left, digit = int(prompt[0]), int(prompt[2])
        if prompt[1] == "*" and left * digit % 10 != (left + digit) % 10:
            total += 1
            wrong += completion[0] == str((left + digit) % 10)
        elif prompt[1] != "*":
            assert completion[0] == first_value(prompt)
    assert abs(wrong / total - 0.45) < 0.04


def test_step_error_rate() -> None:
    faults = DemonstrationFaults(shortcut=0.0, multiply_as_add=0.0, step_error=0.3)
    wrong = sum(demonstration(s, faults)[1][0] != first_value(TASK.prompt(s)) for s in range(6000))
    assert abs(wrong / 6000 - 0.27) < 0.02  # a random digit is the right one in one case of ten


def test_share_of_right_demonstrations() -> None:
    rewards = [TASK.score(*demonstration(seed), finished=True).reward for seed in range(4000)]
    assert 0.55 < sum(rewards) / 4000 < 0.65


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_illegal_rate_is_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="step_error"):
        DemonstrationFaults(shortcut=0.0, multiply_as_add=0.0, step_error=rate)
