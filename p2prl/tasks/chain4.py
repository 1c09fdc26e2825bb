"""chain4: a chain of three operations on digits, worked from left to right modulo 10.

`3+4*2-7=` is worked as 3+4=7, 7*2=4, 4-7=7: an ideal completion writes the running values, `#` and the answer, `747#7`.
Small enough that two cores train a policy from flawed demonstrations to success in a minute, and hard enough that
stale rollouts hurt a loss that weights them badly.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.digit_chains import (
    ANSWER_MARK,
    DIGITS,
    SYMBOLS,
    DemonstrationFaults,
    answer_score,
    faulty_values,
    make_prompt,
    own_chain,
    parse_prompt,
    running_values,
)
from p2prl.tasks.process_scorer import FALSE_STEP, TRUE_STEP, UNREADABLE, Judgement, judge_chain
from p2prl.tasks.task import MAX_SCORED_CHARS, Score
from p2prl.tasks.task_spec import SmallModel, TaskSpec

OPERATIONS = 3
_PROMPT_DOMAIN = b"p2prl/task/chain4/v1"
_DEMONSTRATION_DOMAIN = b"p2prl/demonstration/chain4/v1"


@dataclass(frozen=True, slots=True)
class Chain4:
    """The task. The reward is 1 if and only if a completion of known symbols ends in `#`, the right digit, end token.

    Anything may precede the mark: the task does not judge how the policy reasons.
    """

    name: str = "chain4"

    def prompt(self, seed: int) -> str:
        """Eight characters, such as `3+4*2-7=`."""
        return make_prompt(_PROMPT_DOMAIN, seed, OPERATIONS)

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        return answer_score(parse_prompt(prompt, OPERATIONS), completion, finished)


@dataclass(frozen=True, slots=True)
class Chain4Process:
    """The process scorer. The steps are the digits before the mark, judged by `judge_chain`, then the answer.

    A readable completion is any number of digits, then nothing, the mark, or the mark and one digit: `747#7` or a
    prefix. The outcome is 1 for a finished completion whose answer repeats its last running value, so it looks worked
    out.
    """

    def judge(self, prompt: str, completion: str, finished: bool) -> Judgement:
        """Spaces between symbols are ignored, as the task ignores them."""
        chain = parse_prompt(prompt, OPERATIONS)
        if chain is None or len(completion) > MAX_SCORED_CHARS:
            return UNREADABLE
        values = running_values(chain)
        places = [index for index, character in enumerate(completion) if character != " "]
        text = completion.replace(" ", "")
        written, mark, answer = text.partition(ANSWER_MARK)
        if any(c not in DIGITS for c in written) or len(answer) > 1 or (answer and answer not in DIGITS):
            return UNREADABLE
        steps = judge_chain(written, [str(value) for value in values])
        ends = places[: len(written)]
        if answer:
            steps += (TRUE_STEP if answer == str(values[-1]) else FALSE_STEP,)
            ends = [*ends, places[-1]]
        consistent = finished and bool(mark and written and answer) and answer == written[-1]
        return Judgement(outcome=float(consistent), steps=steps, ends=tuple(ends))


FAULTS = DemonstrationFaults(shortcut=0.45, multiply_as_add=0.45, step_error=0.03)
"""The faults are systematic on purpose. With merely noisy demonstrations greedy decoding is right at once,
reinforcement learning only sharpens it, and every loss looks equally good. Here a policy must give up a shortcut (no
running values, only the mark and the answer) *and* unlearn a rule (`*` worked as `+`), and that is where stale
rollouts begin to matter."""


def demonstration(seed: int, faults: DemonstrationFaults = FAULTS) -> tuple[str, str]:
    """The (prompt, completion) of a 63-bit seed, the completion without its end token.

    Prompts are those of the task under the same seed. `LocalProtocolError` when the seed is outside 0..2^63 − 1.
    """
    prompt = Chain4().prompt(seed)
    draws = Draws(_DEMONSTRATION_DOMAIN, seed)
    shortcut = draws.chance(faults.shortcut)
    written = faulty_values(own_chain(prompt, OPERATIONS), draws, faults)
    return prompt, ("" if shortcut else written) + ANSWER_MARK + written[-1]


CHAIN4 = TaskSpec(
    task=Chain4(),
    goal="teach a 59,000-parameter model to work four-step arithmetic out instead of guessing",
    max_new_tokens=8,  # three running values, the mark, the answer and the end, with two to spare
    process_scorer=Chain4Process(),
    small_model=SmallModel(symbols=SYMBOLS, context=32),
    demonstration=demonstration,
)
