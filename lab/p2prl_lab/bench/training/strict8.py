"""strict8: a chain of eight operations on digits, paid only when every value written is right: a sparse reward.

`3+4*2…=` is worked as in chain4: eight running values, `#` and the answer. A guess earns nothing here, and after the
warm start fewer than one completion in ten does.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.digit_chains import (
    ANSWER_MARK,
    SYMBOLS,
    DemonstrationFaults,
    faulty_values,
    make_prompt,
    own_chain,
    parse_prompt,
    running_values,
)
from p2prl.tasks.task import FAILED, MAX_SCORED_CHARS, Score
from p2prl.tasks.task_spec import SmallModel, TaskSpec

OPERATIONS = 8
_PROMPT_DOMAIN = b"p2prl/task/strict8/v1"
_DEMONSTRATION_DOMAIN = b"p2prl/demonstration/strict8/v1"


@dataclass(frozen=True, slots=True)
class Strict8:
    """The task. The reward is 1 if and only if a completion is the eight right values, `#`, the answer, end token."""

    name: str = "strict8"

    def prompt(self, seed: int) -> str:
        """18 characters, such as `3+4*2-7…=`."""
        return make_prompt(_PROMPT_DOMAIN, seed, OPERATIONS)

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        """See `Task.score`. Spaces between symbols are ignored, so that a tokenizer may join them with spaces."""
        chain = parse_prompt(prompt, OPERATIONS)
        if chain is None or len(completion) > MAX_SCORED_CHARS:
            return FAILED
        values = "".join(map(str, running_values(chain)))
        right = values + ANSWER_MARK + values[-1]
        return Score(reward=float(finished and completion.replace(" ", "") == right))


FAULTS = DemonstrationFaults(shortcut=0.55, multiply_as_add=0.6, step_error=0.01)
"""Both habits are the majority's, so that greedy decoding of the warm start fails, and sampling seldom succeeds."""


def demonstration(seed: int, faults: DemonstrationFaults = FAULTS) -> tuple[str, str]:
    """The (prompt, completion) of a 63-bit seed, the completion without its end token.

    The shortcut stops after a random number of values, 0 to 7. `LocalProtocolError` when the seed is outside
    0..2^63 − 1.
    """
    prompt = Strict8().prompt(seed)
    draws = Draws(_DEMONSTRATION_DOMAIN, seed)
    shortcut, kept = draws.chance(faults.shortcut), draws.below(OPERATIONS)
    written = faulty_values(own_chain(prompt, OPERATIONS), draws, faults)
    return prompt, (written[:kept] if shortcut else written) + ANSWER_MARK + written[-1]


STRICT8 = TaskSpec(
    task=Strict8(),
    goal="teach a small model to work eight steps of arithmetic out without a single mistake",
    max_new_tokens=OPERATIONS + 4,  # the values, the mark, the answer and the end, with one to spare
    small_model=SmallModel(symbols=SYMBOLS, context=32),
    demonstration=demonstration,
)
