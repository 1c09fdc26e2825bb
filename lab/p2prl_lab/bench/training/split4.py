"""split4: chains of four operations from a data set with a train and a test split, so that memory is not skill.

A seed below 2^62 asks one of the training rows, a seed from 2^62 on a chain that is not among them. Evaluations of the
staleness benchmark use seeds from 2^62 on, so what they measure is generalization; see `train_prompt` for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.digit_chains import (
    ANSWER_MARK,
    SYMBOLS,
    DemonstrationFaults,
    answer_score,
    faulty_values,
    make_prompt,
    own_chain,
    parse_prompt,
)
from p2prl.tasks.task import Score
from p2prl.tasks.task_spec import SmallModel, TaskSpec

OPERATIONS = 4
TRAIN_ROWS = 128
"""Rows of the training split. Few enough that a policy meets each of them many times, and may learn it by heart."""

FIRST_TEST_SEED = 1 << 62
"""Seeds from here on are of the test split."""

_TRAIN_DOMAIN = b"p2prl/task/split4/train/v1"
_TEST_DOMAIN = b"p2prl/task/split4/test/v1"
_CHOICE_DOMAIN = b"p2prl/task/split4/choice/v1"
_DEMONSTRATION_DOMAIN = b"p2prl/demonstration/split4/v1"
_NEXT = 0x9E3779B97F4A7C15
"""Distance to the seed tried next when a test prompt is a training row; odd, so that all seeds are reached."""


@cache
def train_rows() -> tuple[str, ...]:
    """The prompts of the training split, each once."""
    rows: dict[str, None] = {}
    number = 0
    while len(rows) < TRAIN_ROWS:
        rows[make_prompt(_TRAIN_DOMAIN, number, OPERATIONS)] = None
        number += 1
    return tuple(rows)


def train_prompt(seed: int) -> str:
    """The training row that a 63-bit seed asks, with equal chances."""
    return train_rows()[Draws(_CHOICE_DOMAIN, seed).below(TRAIN_ROWS)]


def unseen_prompt(domain: bytes, seed: int) -> str:
    """A chain of a 63-bit seed that is not a training row. `LocalProtocolError` when the seed is out of range."""
    prompt = make_prompt(domain, seed, OPERATIONS)
    while prompt in train_rows():
        seed = (seed + _NEXT) % (1 << 63)
        prompt = make_prompt(domain, seed, OPERATIONS)
    return prompt


@dataclass(frozen=True, slots=True)
class Split4:
    """The task. As in chain4 the reward is 1 if and only if a completion ends in `#`, the right digit, end token."""

    name: str = "split4"

    def prompt(self, seed: int) -> str:
        """Ten characters, such as `3+4*2-7+1=`: a training row, or from `FIRST_TEST_SEED` on none of them."""
        return train_prompt(seed) if seed < FIRST_TEST_SEED else unseen_prompt(_TEST_DOMAIN, seed)

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        """See `Task.score`."""
        return answer_score(parse_prompt(prompt, OPERATIONS), completion, finished)


FAULTS = DemonstrationFaults(shortcut=0.5, multiply_as_add=0.55, step_error=0.03)
"""As in chain4, and both habits a little stronger."""


def demonstration(seed: int, faults: DemonstrationFaults = FAULTS) -> tuple[str, str]:
    """The (prompt, completion) of a 63-bit seed, the completion without its end token; of neither split's prompts.

    `LocalProtocolError` when the seed is outside 0..2^63 − 1.
    """
    prompt = unseen_prompt(_DEMONSTRATION_DOMAIN, seed)
    draws = Draws(_DEMONSTRATION_DOMAIN, seed)
    shortcut = draws.chance(faults.shortcut)
    written = faulty_values(own_chain(prompt, OPERATIONS), draws, faults)
    return prompt, ("" if shortcut else written) + ANSWER_MARK + written[-1]


SPLIT4 = TaskSpec(
    task=Split4(),
    goal="teach a small model arithmetic from 128 examples, and see whether it can do others",
    max_new_tokens=OPERATIONS + 5,  # the values, the mark, the answer and the end, with two to spare
    small_model=SmallModel(symbols=SYMBOLS, context=32),
    demonstration=demonstration,
)
