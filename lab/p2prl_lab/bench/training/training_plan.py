"""Training plan of a benchmark: length, learning rate and evaluations."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.errors import require
from p2prl_lab.bench.training.environments import Environment

FINAL_EVALUATIONS = 3
"""Number of last evaluations whose mean is reported as `last`."""

GROUP_SIZE = 8
"""Usual number of completions of a prompt."""

_SAMPLERS = 4

LEARNING_RATE = 5e-4
"""Of short runs: a policy learns most within 200 updates at this rate, before it is in a steady state."""

STEADY_LEARNING_RATE = 1.25e-4
"""Of runs that go on for several times their delay. Over 320 updates under `const:64`, development seeds, the default
loss ends within .3, .0, .0 and 1.2 points of its best rate on four tasks (1.0, 1.1, 5.0 and 12.3 at 5e-4); the mean
of the others is within 1.3 of theirs, but for OAPL with its own β (docs/benchmarks/staleness.md)."""

MOST_EVALUATED = 1 << 16
"""Most prompts of one evaluation; also the distance between prompt seeds of evaluations."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Length, learning rate and evaluations of a training run."""

    updates: int = 200
    """Learner updates of 16 prompts × 8 completions."""
    learning_rate: float = LEARNING_RATE
    """Learning rate of AdamW(.9, .99), after 10 warm-up updates."""
    evaluate_every: int = 20
    """Updates between evaluations; divides `updates` into at least three periods."""
    evaluation_prompts: int = 256
    """Fresh prompts of an evaluation, one sampled completion each."""
    final_prompts: int = 1024
    """Fresh prompts of each of the last three evaluations, whose mean is `last`."""
    group_size: int = GROUP_SIZE
    """Completions of a prompt in an update, a multiple of the four samplers."""
    prompts: int = 0
    """Prompts of an update, a multiple of the four samplers; 0: as many as give the task's usual number of completions,
    and at least one for each sampler."""

    def __post_init__(self) -> None:
        require("learning_rate", self.learning_rate, 0.0 < self.learning_rate < 1.0, "above 0 and below 1")
        for name in ("evaluate_every", "evaluation_prompts", "final_prompts"):
            require(name, getattr(self, name), 1 <= getattr(self, name) <= MOST_EVALUATED, f"1 to {MOST_EVALUATED}")
        whole = self.group_size % _SAMPLERS == 0 and 4 <= self.group_size <= 256
        require("group_size", self.group_size, whole, f"a multiple of {_SAMPLERS}, 4 to 256")
        whole = self.prompts % _SAMPLERS == 0 and 0 <= self.prompts <= 4096
        require("prompts", self.prompts, whole, f"a multiple of {_SAMPLERS}, 0 to 4096")
        legal = self.updates % self.evaluate_every == 0 and self.updates >= FINAL_EVALUATIONS * self.evaluate_every
        require("updates", self.updates, legal, f"a multiple of {self.evaluate_every}, three of them or more")

    def prompts_of(self, environment: Environment) -> int:
        """Prompts of an update on a task."""
        usual = environment.prompts_per_update * GROUP_SIZE // self.group_size
        return self.prompts or max(_SAMPLERS, usual // _SAMPLERS * _SAMPLERS)

    def prompts_at(self, update: int) -> int:
        """Fresh prompts of the evaluation after an update."""
        final = update > self.updates - FINAL_EVALUATIONS * self.evaluate_every
        return self.final_prompts if final else self.evaluation_prompts
