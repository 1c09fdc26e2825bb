"""A task and its optional features in one object, which a package registers under one name.

Only the task itself is required. Every other field enables one feature; using that feature without the field raises an
error that names it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from p2prl.errors import require
from p2prl.tasks.environment import Environment, EnvironmentTask
from p2prl.tasks.process_scorer import ProcessScorer
from p2prl.tasks.task import Task

Demonstration = Callable[[int], tuple[str, str]]
"""(prompt, completion) of a 63-bit seed, the completion without its stop token."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnsDemonstration:
    """Demonstrations of an environment: what the model says; the environment itself says the rest."""

    environment: Environment
    turns: Callable[[int], tuple[str, ...]]
    """The model's turns of a 63-bit seed, one or more, without their stop tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SmallModel:
    """Shape of the character-level model that `p2prl init` creates when no other model is given."""

    symbols: str
    """The characters of prompts, demonstrations and right answers, one token each."""
    context: int
    """Longest prompt and completion together, tokens, the special tokens included."""
    width: int = 48
    """Size of the residual stream."""
    feedforward: int = 192
    """Inner size of the feed-forward layers."""
    layers: int = 2
    """Number of decoder layers."""
    heads: int = 2
    """Attention heads; divides `width`."""

    def __post_init__(self) -> None:
        distinct = 0 < len(self.symbols) == len(set(self.symbols))
        require("symbols", self.symbols[:64], distinct, "at least one character, each once")
        for name in ("context", "width", "feedforward", "layers", "heads"):
            require(name, value := getattr(self, name), value >= 1, "1 or more")
        require("heads", self.heads, self.width % self.heads == 0, f"a divisor of width = {self.width}")


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSpec:
    """One task as the registry knows it."""

    task: Task
    """Makes the prompts and scores the completions. `task.name` is the name run manifests use. An environment stands
    here as an `EnvironmentTask`."""
    goal: str
    """One sentence that volunteers read before they join; `p2prl init --goal` replaces it."""
    max_new_tokens: int
    """Longest completion, tokens, the stop token included; `p2prl init --max-new-tokens` replaces it."""
    process_scorer: ProcessScorer | None = None
    """Scores the steps of a completion. Needed by rewards with a `process` or an `outcome` part."""
    small_model: SmallModel | None = None
    """Needed by `p2prl init` without `--model`, and by benchmarks."""
    demonstration: Demonstration | TurnsDemonstration | None = None
    """Warm-start demonstrations for the small model. Needed by benchmarks; without it the model starts from random
    weights."""
    result_version: int = 1
    """Incremented when anything above changes, so that benchmarks do not reuse older results."""

    @property
    def name(self) -> str:
        """The name run manifests use."""
        return self.task.name

    @property
    def environment(self) -> Environment | None:
        """The environment of a task of several turns; None for a task of one."""
        return self.task.environment if isinstance(self.task, EnvironmentTask) else None
