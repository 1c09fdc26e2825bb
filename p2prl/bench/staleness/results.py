"""The staleness benchmark's results: what names a run of it, and the file they are kept in."""

from __future__ import annotations

from pathlib import Path

import msgspec

from p2prl.bench.results.seed_file import Line, SeedFile
from p2prl.bench.staleness.methods import method_digest
from p2prl.bench.staleness.stale_training import SeedResult, TrainingPlan


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a run but its seed."""

    task: str
    method: str
    delay: str
    updates: int
    learning_rate: float
    evaluate_every: int
    evaluation_prompts: int
    final_prompts: int
    code: str = ""
    """Digest of the code that gives the figures: a line of other code is another setting, and so is not used again."""

    @classmethod
    def of(cls, task: str, method: str, delay: str, plan: TrainingPlan) -> Setting:
        """The setting of one method under one law."""
        return cls(
            task=task,
            method=method,
            delay=delay,
            updates=plan.updates,
            learning_rate=plan.learning_rate,
            evaluate_every=plan.evaluate_every,
            evaluation_prompts=plan.evaluation_prompts,
            final_prompts=plan.final_prompts,
            code=method_digest(method, task),
        )


class ResultFile(SeedFile[Setting, SeedResult]):
    """The staleness benchmark's file of results."""

    def __init__(self, path: Path) -> None:
        """Read `path`; see `SeedFile`."""
        super().__init__(path, Line[Setting, SeedResult])
