"""march512: a running sum of 512 steps, every value written out: completions as long as real ones.

`7+352=` starts at 7 and adds 3, 5, 2, 3, 5, 2… modulo 10, one digit a step. At two steps the sum is doubled instead,
and demonstrations mostly forget it. Almost every token is easy, two decide, and the ratio of a whole completion sums
the drift of 513 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.task import FAILED, MAX_SCORED_CHARS, Score
from p2prl.tasks.task_spec import SmallModel, TaskSpec

DIGITS = "0123456789"
SYMBOLS = DIGITS + "+="
"""Every character a prompt or an acceptable completion can hold."""

STEPS = 512
TURNS = (200, 400)
"""Steps, counted from 1, at which the sum is doubled."""

CYCLE = 3
"""Digits added in turn."""

HASTY, LEAST_KEPT = 0.3, 100
"""Share of the demonstrations that stop too early, and the fewest values they write."""

FORGETS = 0.55
"""Probability that a demonstration adds at a turn as at any other step. Above one half, so that greedy decoding of the
warm start does so too."""

_PROMPT_DOMAIN = b"p2prl/task/march512/v1"
_DEMONSTRATION_DOMAIN = b"p2prl/demonstration/march512/v1"


def march(start: int, added: str, forgotten: frozenset[int] = frozenset()) -> str:
    """The values of all steps, where the turns in `forgotten` are steps like any other."""
    value, written = start, []
    for step in range(1, STEPS + 1):
        if step in TURNS and step not in forgotten:
            value = 2 * value % 10
        else:
            value = (value + int(added[(step - 1) % CYCLE])) % 10
        written.append(DIGITS[value])
    return "".join(written)


@dataclass(frozen=True, slots=True)
class March512:
    """The task. The reward is 1 if and only if a completion is the 512 right values, then the end token."""

    name: str = "march512"

    def prompt(self, seed: int) -> str:
        """Six characters, such as `7+352=`."""
        draws = Draws(_PROMPT_DOMAIN, seed)
        digits = [DIGITS[draws.below(10)] for _ in range(1 + CYCLE)]
        return f"{digits[0]}+{''.join(digits[1:])}="

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        """See `Task.score`. Spaces between symbols are ignored, so that a tokenizer may join them with spaces."""
        readable = len(prompt) == CYCLE + 3 and prompt[1] == "+" and prompt[-1] == "="
        if not readable or len(completion) > MAX_SCORED_CHARS or not set(prompt[:1] + prompt[2:-1]) <= set(DIGITS):
            return FAILED
        right = march(int(prompt[0]), prompt[2:-1])
        return Score(reward=float(finished and completion.replace(" ", "") == right))


def demonstration(seed: int) -> tuple[str, str]:
    """The (prompt, completion) of a 63-bit seed, the completion without its end token.

    `LocalProtocolError` when the seed is outside 0..2^63 − 1.
    """
    prompt = March512().prompt(seed)
    draws = Draws(_DEMONSTRATION_DOMAIN, seed)
    hasty, kept = draws.chance(HASTY), LEAST_KEPT + draws.below(STEPS - LEAST_KEPT)
    forgotten = frozenset(turn for turn in TURNS if draws.chance(FORGETS))
    written = march(int(prompt[0]), prompt[2:-1], forgotten)
    return prompt, written[:kept] if hasty else written


MARCH512 = TaskSpec(
    task=March512(),
    goal="teach a small model to keep count for 512 steps",
    max_new_tokens=STEPS + 4,  # the values and the end, with three to spare
    # One layer is enough: each step needs its own position, the last value and one digit of the prompt.
    small_model=SmallModel(symbols=SYMBOLS, context=528, width=32, feedforward=128, layers=1, heads=1),
    demonstration=demonstration,
)
