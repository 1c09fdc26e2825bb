"""Lengths of a task's prompts in tokens, measured on a sample of its seeds.

A task promises no longest prompt, so a run is planned for the longest of a few thousand, with some room. A slot whose
prompt is longer still than the model's context allows is skipped by everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from p2prl.clock import Clock, SystemClock
from p2prl.tasks.counter_rng import SEED_LIMIT, Draws
from p2prl.tasks.task import Task

_PROMPTS = 4_096
"""Prompts measured: one in a thousand that is too long is missed by one survey in sixty."""

_MEASURED_S = 1.0
"""Seconds after which a survey of all tasks ends with what it has."""

_BATCH = 32
"""Prompts encoded in one call, and the fewest measured of a task."""

_DOMAIN = b"p2prl/prompt-survey"


@dataclass(frozen=True, slots=True)
class PromptLengths:
    """Result of a survey, in tokens."""

    prompts: int
    """Prompts measured."""
    shortest: int
    longest: int

    @property
    def expected(self) -> int:
        """Length to plan for: an eighth of the spread above the longest that was seen."""
        return self.longest + (self.longest - self.shortest) // 8


def survey_prompts(
    tasks: Iterable[Task], encode_all: Callable[[list[str]], Sequence[Sequence[object]]], *, clock: Clock | None = None
) -> PromptLengths:
    """Measure prompts of tasks within about `_MEASURED_S`. `encode_all` gives the tokens of each text."""
    now = (clock or SystemClock()).now
    chosen = list(tasks)
    sizes: list[int] = []
    for task in chosen:
        until = now() + _MEASURED_S / len(chosen)
        first = len(sizes)
        while len(sizes) - first < _PROMPTS and (len(sizes) == first or now() < until):
            texts = [task.prompt(_seed(index)) for index in range(len(sizes) - first, len(sizes) - first + _BATCH)]
            sizes += map(len, encode_all(texts))
    return PromptLengths(len(sizes), min(sizes), max(sizes))


def _seed(index: int) -> int:
    """A seed out of all, as slots give them: the first seeds alone may all have short prompts."""
    draws = Draws(_DOMAIN, index)
    return sum(draws.below(1 << 16) << 16 * place for place in range(4)) % SEED_LIMIT
