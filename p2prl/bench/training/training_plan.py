"""Length, learning rate and evaluations of a benchmark's training run."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.errors import require

FINAL_EVALUATIONS = 3
"""The last evaluations, whose mean is reported as `last`."""

MOST_EVALUATED = 1 << 16
"""Prompts of one evaluation at most; prompt seeds of evaluations lie this far apart."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """How long and how fast to train, and how often to evaluate."""

    updates: int = 200
    """Learner updates of 16 prompts × 8 completions."""
    learning_rate: float = 5e-4
    """Of AdamW(.9, .99), after 10 warm-up updates."""
    evaluate_every: int = 20
    """Updates between evaluations; divides `updates`, of which there are at least three periods."""
    evaluation_prompts: int = 256
    """Fresh prompts of an evaluation, one sampled completion each."""
    final_prompts: int = 1024
    """Fresh prompts of each of the last three evaluations, whose mean is `last`."""

    def __post_init__(self) -> None:
        require("learning_rate", self.learning_rate, 0.0 < self.learning_rate < 1.0, "within 0..1, excluded")
        for name in ("evaluate_every", "evaluation_prompts", "final_prompts"):
            require(name, getattr(self, name), 1 <= getattr(self, name) <= MOST_EVALUATED, f"1 to {MOST_EVALUATED}")
        legal = self.updates % self.evaluate_every == 0 and self.updates >= FINAL_EVALUATIONS * self.evaluate_every
        require("updates", self.updates, legal, f"a multiple of {self.evaluate_every}, three of them or more")

    def prompts_at(self, update: int) -> int:
        """Fresh prompts of the evaluation after an update."""
        final = update > self.updates - FINAL_EVALUATIONS * self.evaluate_every
        return self.final_prompts if final else self.evaluation_prompts
