"""Settings of the evaluation in a run: the `[evaluation]` table of run.toml."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.errors import require

MAX_PROMPTS = 100_000
"""Prompts of one evaluation: a standard error of .0016, and their token ids are held in memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """What is measured, how often, and how much time it may take."""

    every: int = 10
    """Versions between two evaluations; 0 turns them off. The first version and the last are always measured. One that
    is due while another is in progress is skipped, and the learner says so, unless `always` is set."""
    always: bool = False
    """Measure each version that is due, in turn, whatever time it takes: groups wait for their replay meanwhile."""
    prompts: int = 128
    """Prompts of each task: held-out rows of a data task, fresh prompts of a procedural one. Fewer where there are
    fewer. 128 give an interval of about ±.09."""
    samples: int = 4
    """k: samples of each prompt for pass@k, at the run's temperature, beside the greedy completion. 0 for none."""
    time_share: float = 0.05
    """Most time to spend on it while groups wait for their replay or an update is due, as a share of the time since
    the learner started. Time in which the learner would only wait for volunteers does not count."""
    pass_above: float | None = None
    """Score above which a completion passes. Default: half of what the task's scorers can give."""

    def __post_init__(self) -> None:
        require("every", self.every, self.every >= 0, "0 or more")
        require("prompts", self.prompts, 1 <= self.prompts <= MAX_PROMPTS, f"within 1..{MAX_PROMPTS}")
        require("samples", self.samples, 0 <= self.samples <= 1024, "within 0..1024")
        require("time_share", self.time_share, 0.0 < self.time_share <= 1.0, "above 0, up to 1")
