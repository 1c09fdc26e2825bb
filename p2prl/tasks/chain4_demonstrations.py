"""Flawed demonstrations of chain4: what a policy imitates before reinforcement learning puts it right.

The faults are systematic on purpose. With merely noisy demonstrations greedy decoding is right at once, reinforcement
learning only sharpens it, and every loss looks equally good; here a policy must give up a shortcut *and* unlearn a
rule, which is where stale rollouts begin to matter.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.errors import ConfigError, LocalProtocolError
from p2prl.tasks.chain4 import ANSWER_MARK, Chain4, apply, parse_prompt
from p2prl.tasks.counter_rng import Draws

_DOMAIN = b"p2prl/demonstration/chain4/v1"


@dataclass(frozen=True, kw_only=True, slots=True)
class DemonstrationFaults:
    """How often a demonstration does what it should not."""

    shortcut: float = 0.45
    """Share of demonstrations that write no running values: only the mark and the answer. Within 0..1."""

    multiply_as_add: float = 0.45
    """Probability that one `*` is worked as `+`. Within 0..1."""

    step_error: float = 0.03
    """Probability that one running value is replaced by a random digit. Within 0..1."""

    def __post_init__(self) -> None:
        for name in ("shortcut", "multiply_as_add", "step_error"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name} is {value}", remedy=f"Set {name} to a probability within 0..1.")


DEFAULT_FAULTS = DemonstrationFaults()


def demonstration(seed: int, faults: DemonstrationFaults = DEFAULT_FAULTS) -> tuple[str, str]:
    """The (prompt, completion) of a 63-bit seed, the completion without its end token.

    Prompts are those of the task under the same seed. `LocalProtocolError` when the seed is outside 0..2^63 − 1.
    """
    prompt = Chain4().prompt(seed)
    parsed = parse_prompt(prompt)
    if parsed is None:
        raise LocalProtocolError(f"chain4 made the prompt {prompt!r} and cannot read it")
    value, operations = parsed
    draws = Draws(_DOMAIN, seed)
    shortcut = draws.chance(faults.shortcut)
    reasoning = ""
    for operator, digit in operations:
        # Each fault is drawn for every step, needed or not: a changed rate then leaves all other draws in place.
        confused, slipped, slip = draws.chance(faults.multiply_as_add), draws.chance(faults.step_error), draws.below(10)
        value = apply("+" if operator == "*" and confused else operator, value, digit)
        value = slip if slipped else value
        reasoning += str(value)
    return prompt, ("" if shortcut else reasoning) + ANSWER_MARK + str(value)
