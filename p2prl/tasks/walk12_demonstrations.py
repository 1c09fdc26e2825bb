"""Flawed demonstrations of walk12: what a policy imitates before reinforcement learning puts it right.

As with chain4 the faults are systematic: a shortcut that stops writing steps and guesses, and a rule that is wrong for
two digits only, because over twelve steps a fault of every multiplication would leave next to no completion right.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.errors import ConfigError, LocalProtocolError
from p2prl.tasks.chain4 import ANSWER_MARK, apply
from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.walk12 import OPERATIONS, Walk12, parse_prompt, write_step

_DOMAIN = b"p2prl/demonstration/walk12/v1"

CONFUSED_DIGITS = frozenset({6, 7})
"""Multiplying by one of these is the wrong rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk12Faults:
    """How often a demonstration does what it should not."""

    shortcut: float = 0.4
    """Share of demonstrations that stop after a random number of steps, 0 to 11, and guess. Within 0..1."""

    multiply_as_add: float = 0.45
    """Probability that one `*6` or `*7` is worked as `+6` or `+7`. Within 0..1."""

    step_error: float = 0.003
    """Probability that one running value is replaced by a random digit. Within 0..1."""

    def __post_init__(self) -> None:
        for name in ("shortcut", "multiply_as_add", "step_error"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name} is {value}", remedy=f"Set {name} to a probability within 0..1.")


DEFAULT_FAULTS = Walk12Faults()


def demonstration(seed: int, faults: Walk12Faults = DEFAULT_FAULTS) -> tuple[str, str]:
    """The (prompt, completion) of a 63-bit seed, the completion without its end token.

    Prompts are those of the task under the same seed. `LocalProtocolError` when the seed is outside 0..2^63 − 1.
    """
    prompt = Walk12().prompt(seed)
    parsed = parse_prompt(prompt)
    if parsed is None:
        raise LocalProtocolError(f"walk12 made the prompt {prompt!r} and cannot read it")
    value, operations = parsed
    draws = Draws(_DOMAIN, seed)
    # All draws are made whether needed or not: a changed rate then leaves all others in place.
    shortcut, kept, guess = draws.chance(faults.shortcut), draws.below(OPERATIONS), draws.below(10)
    written = []
    for operator, digit in operations:
        confused, slipped, slip = draws.chance(faults.multiply_as_add), draws.chance(faults.step_error), draws.below(10)
        wrong = confused and operator == "*" and digit in CONFUSED_DIGITS
        value = apply("+" if wrong else operator, value, digit)
        value = slip if slipped else value
        written.append(write_step(operator, digit, value))
    if shortcut:
        return prompt, "".join(written[:kept]) + ANSWER_MARK + str(guess)
    return prompt, "".join(written) + ANSWER_MARK + str(value)
