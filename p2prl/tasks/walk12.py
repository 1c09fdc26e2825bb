"""walk12: a chain of twelve operations on digits whose every step must be written out, about fifty tokens.

`3+4*2…=` is worked from left to right modulo 10, each step as its operator, its digit, `:` and the running value, then
`#` and the answer: `+4:7*2:4…#4`. The long sibling of `chain4`: whole-sequence importance ratios, harmless over six
tokens, are over fifty what they are in practice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.tasks.chain4 import ANSWER_MARK, DIGITS, OPERATORS, apply
from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.task import FAILED, MAX_SCORED_CHARS, Score

NAME = "walk12"
STEP_MARK = ":"
SYMBOLS = DIGITS + OPERATORS + "=" + ANSWER_MARK + STEP_MARK
"""Every character a prompt or an acceptable completion can hold."""

OPERATIONS = 12
STEP_CHARS = 4
MAX_NEW_TOKENS = STEP_CHARS * OPERATIONS + 4
"""Twelve steps, the mark, the answer and the end, with one to spare."""

_PROMPT_CHARS = 2 * OPERATIONS + 2
_PROMPT_DOMAIN = b"p2prl/task/walk12/v1"


def parse_prompt(prompt: str) -> tuple[int, tuple[tuple[str, int], ...]] | None:
    """The first digit and the twelve (operator, digit) pairs of a prompt; None when it is not a prompt of this task."""
    if len(prompt) != _PROMPT_CHARS or prompt[-1] != "=":
        return None
    if any(c not in DIGITS for c in prompt[0:-1:2]) or any(c not in OPERATORS for c in prompt[1:-1:2]):
        return None
    return int(prompt[0]), tuple((prompt[i], int(prompt[i + 1])) for i in range(1, len(prompt) - 1, 2))


def write_step(operator: str, digit: int, value: int) -> str:
    """One step as a completion writes it, such as `+4:7`."""
    return f"{operator}{digit}{STEP_MARK}{value}"


@dataclass(frozen=True, slots=True)
class Walk12:
    """The task. The reward is 1 if and only if a completion reads as steps, `#`, the right digit, end.

    A step is an operator, a digit, `:` and a digit, any number of them, right or wrong: the answer alone decides.
    """

    name: str = NAME

    def prompt(self, seed: int) -> str:
        """26 characters, such as `3+4*2-7…=`."""
        draws = Draws(_PROMPT_DOMAIN, seed)
        text = DIGITS[draws.below(10)]
        for _ in range(OPERATIONS):
            text += OPERATORS[draws.below(len(OPERATORS))] + DIGITS[draws.below(10)]
        return text + "="

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        """See `Task.score`. Spaces between symbols are ignored, so that a tokenizer may join them with spaces."""
        parsed = parse_prompt(prompt)
        if parsed is None or len(completion) > MAX_SCORED_CHARS:
            return FAILED
        reasoning, mark, answer = completion.replace(" ", "").partition(ANSWER_MARK)
        written = [reasoning[i : i + STEP_CHARS] for i in range(0, len(reasoning), STEP_CHARS)]
        if not mark or not all(is_step(step) for step in written) or len(answer) != 1 or answer not in DIGITS:
            return FAILED
        return Score(reward=float(finished and answer == right_steps(*parsed)[-1][-1]))


def right_steps(first: int, operations: Sequence[tuple[str, int]]) -> list[str]:
    """The steps of a prompt as an ideal completion writes them; the last character of the last is the answer."""
    value, steps = first, []
    for operator, digit in operations:
        value = apply(operator, value, digit)
        steps.append(write_step(operator, digit, value))
    return steps


def is_step(text: str) -> bool:
    """Whether `text` reads as one step, right or wrong."""
    return (
        len(text) == STEP_CHARS
        and text[0] in OPERATORS
        and text[1] in DIGITS
        and text[2] == STEP_MARK
        and text[3] in DIGITS
    )
