"""Chains of digit operations, worked from left to right modulo 10: what the tasks that ask them have in common."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.errors import ConfigError, LocalProtocolError
from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.task import FAILED, MAX_SCORED_CHARS, Score

OPERATORS = "+-*"
DIGITS = "0123456789"
ANSWER_MARK = "#"
SYMBOLS = DIGITS + OPERATORS + "=" + ANSWER_MARK
"""Every character of a prompt, or of a completion that writes values and an answer."""

Chain = tuple[int, tuple[tuple[str, int], ...]]
"""The first digit of a prompt and its (operator, digit) pairs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DemonstrationFaults:
    """Fault rates of a task's demonstrations."""

    shortcut: float
    """Share of demonstrations that skip steps, all or the later ones, and only state an answer. Within 0..1."""

    multiply_as_add: float
    """Probability that one confusable multiplication is worked as an addition. Within 0..1."""

    step_error: float
    """Probability that one running value is replaced by a random digit. Within 0..1."""

    def __post_init__(self) -> None:
        for name in ("shortcut", "multiply_as_add", "step_error"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name} is {value}", remedy=f"Set {name} to a probability within 0..1.")


def apply(operator: str, left: int, right: int) -> int:
    """`left operator right` modulo 10; `operator` is one of `OPERATORS`."""
    if operator == "+":
        return (left + right) % 10
    if operator == "-":
        return (left - right) % 10
    return left * right % 10


def make_prompt(domain: bytes, seed: int, operations: int) -> str:
    """The prompt of a 63-bit seed, such as `3+4*2-7=`. `LocalProtocolError` when the seed is out of range."""
    draws = Draws(domain, seed)
    text = DIGITS[draws.below(10)]
    for _ in range(operations):
        text += OPERATORS[draws.below(len(OPERATORS))] + DIGITS[draws.below(10)]
    return text + "="


def parse_prompt(prompt: str, operations: int) -> Chain | None:
    """The chain of a prompt; None when the text is not a prompt of this many operations."""
    if len(prompt) != 2 * operations + 2 or prompt[-1] != "=":
        return None
    if any(c not in DIGITS for c in prompt[0:-1:2]) or any(c not in OPERATORS for c in prompt[1:-1:2]):
        return None
    return int(prompt[0]), tuple((prompt[i], int(prompt[i + 1])) for i in range(1, len(prompt) - 1, 2))


def own_chain(prompt: str, operations: int) -> Chain:
    """The chain of a prompt this program just made."""
    chain = parse_prompt(prompt, operations)
    if chain is None:
        raise LocalProtocolError(f"{prompt!r} was made as a prompt of {operations} operations and cannot be read")
    return chain


def running_values(chain: Chain) -> tuple[int, ...]:
    """The value after each operation; the last is the answer."""
    value, operations = chain
    values = []
    for operator, digit in operations:
        value = apply(operator, value, digit)
        values.append(value)
    return tuple(values)


def answer_score(chain: Chain | None, completion: str, finished: bool) -> Score:
    """1 if and only if a finished completion of `SYMBOLS` ends in the mark and the right digit, whatever is before.

    Spaces between symbols are ignored, so that a tokenizer may join them with spaces.
    """
    if chain is None or len(completion) > MAX_SCORED_CHARS:
        return FAILED
    text = completion.replace(" ", "")
    if not set(text) <= set(SYMBOLS):
        return FAILED
    return Score(reward=float(finished and text.endswith(ANSWER_MARK + str(running_values(chain)[-1]))))


def faulty_values(chain: Chain, draws: Draws, faults: DemonstrationFaults) -> str:
    """The values of a demonstration, a digit each, where any multiplication is confusable."""
    value, operations = chain
    written = ""
    for operator, digit in operations:
        # Draw every fault for every step, needed or not, so that changing one rate leaves all other draws unchanged.
        confused, slipped, slip = draws.chance(faults.multiply_as_add), draws.chance(faults.step_error), draws.below(10)
        value = apply("+" if operator == "*" and confused else operator, value, digit)
        value = slip if slipped else value
        written += str(value)
    return written
