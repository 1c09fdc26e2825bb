"""chain4: a chain of three operations on digits, worked from left to right modulo 10.

`3+4*2-7=` is worked as 3+4=7, 7*2=4, 4-7=7: an ideal completion writes the running values, `#` and the answer, `747#7`.
Small enough that two cores can take a policy from wrong habits to right ones in a minute, and hard enough that
stale rollouts hurt a learner that weighs them badly.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.task import FAILED, MAX_SCORED_CHARS, Score

NAME = "chain4"
OPERATORS = "+-*"
DIGITS = "0123456789"
ANSWER_MARK = "#"
SYMBOLS = DIGITS + OPERATORS + "=" + ANSWER_MARK
"""Every character a prompt or an acceptable completion can hold."""

MAX_NEW_TOKENS = 8
"""Three running values, the mark, the answer and the end, with two to spare."""

_OPERATIONS = 3
_PROMPT_DOMAIN = b"p2prl/task/chain4/v1"


def apply(operator: str, left: int, right: int) -> int:
    """`left operator right` modulo 10; `operator` is one of `OPERATORS`."""
    if operator == "+":
        return (left + right) % 10
    if operator == "-":
        return (left - right) % 10
    return left * right % 10


def parse_prompt(prompt: str) -> tuple[int, tuple[tuple[str, int], ...]] | None:
    """The first digit and the (operator, digit) pairs of a prompt; None when it is not a prompt of this task."""
    if len(prompt) != 2 * _OPERATIONS + 2 or prompt[-1] != "=":
        return None
    if any(c not in DIGITS for c in prompt[0:-1:2]) or any(c not in OPERATORS for c in prompt[1:-1:2]):
        return None
    return int(prompt[0]), tuple((prompt[i], int(prompt[i + 1])) for i in range(1, len(prompt) - 1, 2))


def running_values(prompt: str) -> tuple[int, ...] | None:
    """The three running values of a prompt, the last of which is the answer; None when it is not a prompt."""
    parsed = parse_prompt(prompt)
    if parsed is None:
        return None
    value, operations = parsed
    values = []
    for operator, digit in operations:
        value = apply(operator, value, digit)
        values.append(value)
    return tuple(values)


@dataclass(frozen=True, slots=True)
class Chain4:
    """The task. The reward is 1 if and only if a completion of known symbols ends `#`, the right digit, end.

    What stands before the mark is free: reasoning is the policy's own affair.
    """

    name: str = NAME

    def prompt(self, seed: int) -> str:
        """Eight characters, such as `3+4*2-7=`."""
        draws = Draws(_PROMPT_DOMAIN, seed)
        text = DIGITS[draws.below(10)]
        for _ in range(_OPERATIONS):
            text += OPERATORS[draws.below(len(OPERATORS))] + DIGITS[draws.below(10)]
        return text + "="

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        """See `Task.score`. Spaces between symbols are ignored, so that a tokenizer may join them with spaces."""
        values = running_values(prompt)
        if values is None or len(completion) > MAX_SCORED_CHARS:
            return FAILED
        text = completion.replace(" ", "")
        if not set(text) <= set(SYMBOLS):
            return FAILED
        return Score(reward=float(finished and text.endswith(ANSWER_MARK + str(values[-1]))))
