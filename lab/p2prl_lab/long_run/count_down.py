"""count_down: count from a number down to zero. `004=` asks for `003,002,001,000#`.

A task for tests of long completions: lengths spread from ten to a thousand characters, as in practice. Numbers have
three digits each, so that a small model learns the step from one to the next in minutes. Demonstrations often stop
early, which leaves reinforcement learning something to undo.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.task import FAILED, Score
from p2prl.tasks.task_spec import TaskSpec

SYMBOLS = "0123456789=,#"
FEWEST, MOST = 4, 250
"""Counts begin between these. 250 takes 1,000 characters."""

EARLY_STOPS = 0.55
"""Share of the demonstrations that stop before zero."""


@dataclass(frozen=True, slots=True)
class CountDown:
    """The task: the reward is 1 for the complete count and nothing else."""

    name: str = "count_down"

    def prompt(self, seed: int) -> str:
        """A number and `=`. Its logarithm is uniform, so that few completions are long."""
        draws = Draws(b"count_down/prompt/v1", seed)
        share = draws.below(1 << 16) / (1 << 16)
        return f"{round(FEWEST * math.exp(share * math.log(MOST / FEWEST))):03}="

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        """Score 0 unless the completion is finished and right; never raises."""
        number = prompt[:-1]
        if not prompt.endswith("=") or not number.isascii() or not number.isdigit() or len(number) != 3:
            return FAILED
        return Score(reward=float(finished and completion == full_count(int(number))))


def full_count(start: int) -> str:
    """The right completion."""
    return ",".join(f"{value:03}" for value in range(start - 1, -1, -1)) + "#"


def demonstration(seed: int) -> tuple[str, str]:
    """A demonstration of the prompt of a 63-bit seed, complete or with an early end."""
    prompt = CountDown().prompt(seed)
    start = int(prompt[:-1])
    draws = Draws(b"count_down/demonstration/v1", seed)
    stops, kept = draws.chance(EARLY_STOPS), 1 + draws.below(start - 1)
    written = full_count(start)
    return prompt, ",".join(written[:-1].split(",")[:kept]) + "#" if stops else written


COUNT_DOWN = TaskSpec(
    task=CountDown(), goal="teach a model to count down to zero", max_new_tokens=1024, demonstration=demonstration
)
