"""walk12: a chain of twelve operations on digits whose every step must be written out, about fifty tokens.

`3+4*2…=` is worked from left to right modulo 10, each step as its operator, its digit, `:` and the running value, then
`#` and the answer: `+4:7*2:4…#4`. A longer `chain4`: whole-sequence importance ratios, harmless over six tokens, behave
over fifty as they do in practice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.digit_chains import (
    ANSWER_MARK,
    DIGITS,
    OPERATORS,
    DemonstrationFaults,
    apply,
    make_prompt,
    own_chain,
    parse_prompt,
)
from p2prl.tasks.process_scorer import FALSE_STEP, TRUE_STEP, UNREADABLE, Judgement, judge_chain
from p2prl.tasks.task import FAILED, MAX_SCORED_CHARS, Score
from p2prl.tasks.task_spec import SmallModel, TaskSpec

STEP_MARK = ":"
SYMBOLS = DIGITS + OPERATORS + "=" + ANSWER_MARK + STEP_MARK
"""Every character a prompt or an acceptable completion can hold."""

OPERATIONS = 12
STEP_CHARS = 4
_PROMPT_DOMAIN = b"p2prl/task/walk12/v1"
_DEMONSTRATION_DOMAIN = b"p2prl/demonstration/walk12/v1"


def write_step(operator: str, digit: int, value: int) -> str:
    """One step as a completion writes it, such as `+4:7`."""
    return f"{operator}{digit}{STEP_MARK}{value}"


def is_step(text: str) -> bool:
    """Whether `text` reads as one step, right or wrong."""
    return (
        len(text) == STEP_CHARS
        and text[0] in OPERATORS
        and text[1] in DIGITS
        and text[2] == STEP_MARK
        and text[3] in DIGITS
    )


def right_steps(first: int, operations: Sequence[tuple[str, int]]) -> list[str]:
    """The steps of an ideal completion for a prompt; the last character of the last step is the answer."""
    value, steps = first, []
    for operator, digit in operations:
        value = apply(operator, value, digit)
        steps.append(write_step(operator, digit, value))
    return steps


@dataclass(frozen=True, slots=True)
class Walk12:
    """The task. The reward is 1 if and only if a completion is steps, `#`, the right digit, end token.

    A step is an operator, a digit, `:` and a digit. Any number is allowed, right or wrong: only the answer counts.
    """

    name: str = "walk12"

    def prompt(self, seed: int) -> str:
        """26 characters, such as `3+4*2-7…=`."""
        return make_prompt(_PROMPT_DOMAIN, seed, OPERATIONS)

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        """Spaces between symbols are ignored, so that a tokenizer may join them with spaces."""
        parsed = parse_prompt(prompt, OPERATIONS)
        if parsed is None or len(completion) > MAX_SCORED_CHARS:
            return FAILED
        reasoning, mark, answer = completion.replace(" ", "").partition(ANSWER_MARK)
        written = [reasoning[i : i + STEP_CHARS] for i in range(0, len(reasoning), STEP_CHARS)]
        if not mark or not all(is_step(step) for step in written) or len(answer) != 1 or answer not in DIGITS:
            return FAILED
        return Score(reward=float(finished and answer == right_steps(*parsed)[-1][-1]))


@dataclass(frozen=True, slots=True)
class Walk12Process:
    """The process scorer. The steps are those before the mark, judged by `judge_chain`, then the answer.

    A readable completion is any number of steps, then nothing, the mark, or the mark and one digit; a truncated last
    step is ignored. The outcome is 1 for a finished completion whose answer repeats its last step's value.
    """

    def judge(self, prompt: str, completion: str, finished: bool) -> Judgement:
        """Spaces between symbols are ignored, as the task ignores them."""
        parsed = parse_prompt(prompt, OPERATIONS)
        if parsed is None or len(completion) > MAX_SCORED_CHARS:
            return UNREADABLE
        places = [index for index, character in enumerate(completion) if character != " "]
        text = completion.replace(" ", "")
        reasoning, mark, answer = text.partition(ANSWER_MARK)
        complete = len(reasoning) // STEP_CHARS * STEP_CHARS
        written = [reasoning[i : i + STEP_CHARS] for i in range(0, complete, STEP_CHARS)]
        broken = complete < len(reasoning) and (bool(mark) or finished)
        if broken or not all(map(is_step, written)) or len(answer) > 1 or (answer and answer not in DIGITS):
            return UNREADABLE
        right = right_steps(*parsed)
        steps = judge_chain(written, right)
        ends = [places[i] for i in range(STEP_CHARS - 1, complete, STEP_CHARS)]
        if answer:
            steps += (TRUE_STEP if answer == right[-1][-1] else FALSE_STEP,)
            ends = [*ends, places[-1]]
        consistent = finished and bool(written and answer) and answer == written[-1][-1]
        return Judgement(outcome=float(consistent), steps=steps, ends=tuple(ends))


CONFUSED_DIGITS = frozenset({6, 7})
"""Demonstrations work a multiplication by one of these as an addition. If every multiplication were faulty, almost no
completion of twelve steps would be right."""

FAULTS = DemonstrationFaults(shortcut=0.4, multiply_as_add=0.45, step_error=0.003)
"""Systematic, as in chain4: a shortcut that stops after a random number of steps, 0 to 11, and guesses, and a rule that
is wrong for two digits."""


def demonstration(seed: int, faults: DemonstrationFaults = FAULTS) -> tuple[str, str]:
    """The (prompt, completion) of a 63-bit seed, the completion without its end token.

    Prompts are those of the task under the same seed. `LocalProtocolError` when the seed is outside 0..2^63 − 1.
    """
    prompt = Walk12().prompt(seed)
    value, operations = own_chain(prompt, OPERATIONS)
    draws = Draws(_DEMONSTRATION_DOMAIN, seed)
    # Make all draws, needed or not, so that changing one rate leaves all other draws unchanged.
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


WALK12 = TaskSpec(
    task=Walk12(),
    goal="teach a small model to write twelve steps of arithmetic out, one by one",
    max_new_tokens=STEP_CHARS * OPERATIONS + 4,  # twelve steps, the mark, the answer and the end, with one to spare
    process_scorer=Walk12Process(),
    small_model=SmallModel(symbols=SYMBOLS, context=96),
    demonstration=demonstration,
)
