"""reverse5: write five digits backwards. `30127=` asks for `72103`."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.process_scorer import FALSE_STEP, TRUE_STEP, UNREADABLE, Judgement
from p2prl.tasks.task import FAILED, Score
from p2prl.tasks.task_spec import SmallModel, TaskSpec

DIGITS = "0123456789"
LENGTH = 5


@dataclass(frozen=True, slots=True)
class Reverse5:
    """The task: the reward is 1 for the digits backwards and nothing else."""

    name: str = "reverse5"

    def prompt(self, seed: int) -> str:
        """Five digits and `=`. `Draws` gives every machine the same digits."""
        draws = Draws(b"reverse5/prompt/v1", seed)
        return "".join(DIGITS[draws.below(10)] for _ in range(LENGTH)) + "="

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        """Score 0 unless the completion is finished and right; never raises."""
        digits = prompt[:-1]
        if len(digits) != LENGTH or prompt[-1] != "=" or not set(digits) <= set(DIGITS):
            return FAILED
        return Score(reward=float(finished and completion == digits[::-1]))


@dataclass(frozen=True, slots=True)
class Reverse5Process:
    """The process scorer: each digit is a step, true if it is right at its position."""

    def judge(self, prompt: str, completion: str, finished: bool) -> Judgement:
        """Judge a completion as far as it goes. A longer text than an answer is unreadable."""
        if len(prompt) != LENGTH + 1 or len(completion) > LENGTH or not set(completion) <= set(DIGITS):
            return UNREADABLE
        right = prompt[-2::-1]
        steps = tuple(
            TRUE_STEP if written == wanted else FALSE_STEP for written, wanted in zip(completion, right, strict=False)
        )
        complete = finished and len(completion) == LENGTH
        return Judgement(outcome=float(complete), steps=steps, ends=tuple(range(len(steps))))


def demonstration(seed: int) -> tuple[str, str]:
    """A demonstration with one digit in ten wrong, which leaves something for reinforcement learning to improve."""
    prompt = Reverse5().prompt(seed)
    draws = Draws(b"reverse5/demonstration/v1", seed)
    answer = ""
    for digit in prompt[-2::-1]:
        slipped, slip = draws.chance(0.1), draws.below(10)
        answer += DIGITS[slip] if slipped else digit
    return prompt, answer


REVERSE5 = TaskSpec(
    task=Reverse5(),
    goal="teach a small model to write five digits backwards",
    max_new_tokens=LENGTH + 1,  # the digits and the stop token
    process_scorer=Reverse5Process(),
    small_model=SmallModel(symbols=DIGITS + "=", context=16),
    demonstration=demonstration,
)
