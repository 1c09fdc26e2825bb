"""The task interface: a prompt from a seed, and a score from a text.

Every peer of a run must agree on both to the last bit, so a task holds no state, reads no data file and draws from
counter-based integers (`p2prl/tasks/counter_rng.py`), never from a library's random generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MAX_SCORED_CHARS = 131_072
"""A longer completion scores 0 unread. Four characters per token at the wire's longest completion (32,768 tokens)."""


@dataclass(frozen=True, slots=True)
class Score:
    """A task's verdict on one completion."""

    reward: float
    """Success as the task defines it, within 0..1. Steps are scored by a `ProcessScorer`."""


FAILED = Score(reward=0.0)
"""The score of anything a task's grammar does not accept."""


class Task(Protocol):
    """A family of prompts that a program can score."""

    @property
    def name(self) -> str:
        """The name run manifests use."""
        ...

    def prompt(self, seed: int) -> str:
        """The prompt of a 63-bit seed. `LocalProtocolError` when the seed is outside 0..2^63 − 1."""
        ...

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        """Score a completion (its text without the stop token) of a prompt of this task.

        `finished` is true when the sampler stopped at a stop token rather than at the length limit. Must never
        raise, and take time linear in the text. A prompt this task does not generate scores `FAILED`.
        """
        ...
