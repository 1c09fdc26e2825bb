"""Stored results of the staleness benchmark: the key of a run, and the file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from p2prl_lab.bench.results.result_version import result_version
from p2prl_lab.bench.results.seed_file import Line, SeedFile
from p2prl_lab.bench.staleness import banded_training, delayed_training
from p2prl_lab.bench.staleness.measures import MEASURES_VERSION
from p2prl_lab.bench.staleness.methods import parse_method
from p2prl_lab.bench.staleness.seed_log import SeedResult
from p2prl_lab.bench.training import warm_start
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.training_plan import GROUP_SIZE, TrainingPlan


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a run except its seed."""

    task: str
    method: str
    delay: str
    updates: int
    learning_rate: float
    evaluate_every: int
    evaluation_prompts: int
    final_prompts: int
    version: str = ""
    """Version of the code that affects the figures; results of other versions are not reused."""
    group_size: int = GROUP_SIZE
    prompts: int = 0
    """See `TrainingPlan.prompts`."""

    @classmethod
    def of(cls, task: str, method: str, delay: str, plan: TrainingPlan) -> Setting:
        """The setting of one method under one delay distribution."""
        return cls(
            task=task,
            method=method,
            delay=delay,
            updates=plan.updates,
            learning_rate=plan.learning_rate,
            evaluate_every=plan.evaluate_every,
            evaluation_prompts=plan.evaluation_prompts,
            final_prompts=plan.final_prompts,
            group_size=plan.group_size,
            prompts=plan.prompts,
            version=version_of(task, method),
        )


class ResultFile(SeedFile[Setting, SeedResult]):
    """The staleness benchmark's file of results."""

    def __init__(self, path: Path) -> None:
        """Read `path`; see `SeedFile`."""
        super().__init__(path, Line[Setting, SeedResult], read_line=_read_line)


def version_of(task: str, method: str) -> str:
    """Result version of a method on a task, covering all code that affects its figures and what they mean."""
    environment = environment_by_name(task)
    parsed = parse_method(method, max_completion_tokens=environment.max_new_tokens)
    version = result_version(
        measures=MEASURES_VERSION,
        training=delayed_training.RESULT_VERSION,
        warm_start=warm_start.RESULT_VERSION,
        environment=environment.result_version,
        loss=parsed.objective.spec.result_version,
        **({"band": banded_training.RESULT_VERSION} if "band" in parsed.additions else {}),
    )
    return f"{version} file={environment.origin}" if environment.origin else version


class _Versioned(msgspec.Struct, frozen=True):
    """The part of a setting that says what its figures mean."""

    version: str = ""


class _AnyLine(msgspec.Struct, frozen=True):
    """A line of any version."""

    setting: _Versioned


def _read_line(text: bytes) -> Line[Setting, SeedResult] | None:
    # Lines of other measures stay in the file, for the version of p2prl that wrote them.
    meaning = msgspec.json.decode(text, type=_AnyLine).setting.version.split(" ")[0]
    if meaning != result_version(measures=MEASURES_VERSION):
        return None
    return msgspec.json.decode(text, type=Line[Setting, SeedResult])
