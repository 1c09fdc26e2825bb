"""A run with a data task beside chain4: rows of sums that the tiny model's tokenizer can read, and a scorer in-process.

The scorer stands in for the sandbox: it compares, and fails where a test says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from p2prl.models.groups.group_work import GroupWork
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.protocol.manifests import DataSet, RunManifest, TaskShare, blob_of
from p2prl.tasks.data.packed_data import DataSplit, PackedPrompts, PackedRows, Row, TaskData, prompt_record, row_record
from p2prl.tasks.data.packed_file import PackedWriter
from p2prl.tasks.scorers.spec import Reward, Scoring, scoring_spec
from tests.unit.learner.small_run import SmallRun

SUMS = tuple({"prompt": f"{a}+{b}=", "answer": str((a + b) % 10)} for a in range(1, 6) for b in range(2, 5))
"""Fifteen rows."""

SCORING = scoring_spec(Scoring(rewards=(Reward(scorer="exact"),)))

HELD_OUT = tuple({"prompt": f"{a}-1=", "answer": str(a - 1)} for a in range(1, 5))


def pack(path: Path, records: Sequence[bytes]) -> Path:
    """A packed file."""
    with PackedWriter(path) as writer:
        for record in records:
            writer.append(record)
        writer.finish()
    return path


def split(
    directory: Path, codec: TextCodec, rows: Sequence[Mapping[str, Any]], *, name: str, scored: bool
) -> DataSplit:
    """Rows as packed files; without `scored`, as a volunteer has them."""
    prompts = pack(directory / f"{name}-prompts", [prompt_record(codec.encode(row["prompt"])) for row in rows])
    packed = pack(directory / f"{name}-rows", [row_record(row) for row in rows])
    return DataSplit(PackedPrompts(prompts), PackedRows(packed) if scored else None)


def data_set(
    task: str, *, rows: int = len(SUMS), prompts: bytes = b"p", answers: bytes = b"a", scoring: str = ""
) -> DataSet:
    """A manifest's entry. Only its name and number of rows are read where no file travels."""
    return DataSet(task, rows, blob_of(prompts, 4096), blob_of(answers, 4096), scoring or SCORING)


def with_data(manifest: RunManifest, *, share: float = 1.0, **changes: object) -> RunManifest:
    """A manifest with the data task `sums` beside its tasks."""
    tasks = (*manifest.tasks, TaskShare("sums", share))
    return msgspec.structs.replace(manifest, **{"tasks": tasks, "data_sets": (data_set("sums"),), **changes})


@dataclass(frozen=True)
class Scored:
    """A score, or why there is none."""

    value: float
    failure: str = ""
    parts: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Pending:
    """Scores on their way; the scorer's `error` is raised instead of them."""

    scorer: Comparing
    scores: tuple[Scored, ...]

    def result(self) -> tuple[Scored, ...]:
        if self.scorer.error is not None:
            raise self.scorer.error
        self.scorer.gathered.append(len(self.scorer.calls))
        return self.scores


@dataclass
class Comparing:
    """Scores 1 for exactly the answer. Fails on every answer as long as `broken` says why."""

    broken: str = ""
    error: Exception | None = None
    closed: bool = False
    calls: list[tuple[str, Row, bytes]] = field(default_factory=list)
    gathered: list[int] = field(default_factory=list)
    """For each result that was waited for, how many calls there had been."""

    def submit(self, task: str, row: Row, completions: Sequence[tuple[str, bool]], *, account: bytes) -> Pending:
        self.calls.append((task, row, account))
        if self.broken:
            return Pending(self, tuple(Scored(0.0, self.broken) for _ in completions))
        return Pending(self, tuple(Scored(float(finished and text == row["answer"])) for text, finished in completions))

    def close(self) -> None:
        self.closed = True


class DataRun:
    """A small run with its data, as a volunteer and as a scoring machine hold it."""

    def __init__(self, world: SmallRun, *, share: float = 1.0, **changes: object) -> None:
        self.world = world
        self.codec = TextCodec(world.loaded.tokenizer, world.loaded.model)
        self.manifest = with_data(world.manifest, share=share, **changes)
        self.scorer = Comparing()
        held, bare = (
            {
                "sums": TaskData(
                    split(world.directory, self.codec, SUMS, name="sums", scored=scored),
                    split(world.directory, self.codec, HELD_OUT, name="held", scored=True) if scored else None,
                )
            }
            for scored in (True, False)
        )
        self.learner = GroupWork(self.manifest, world.run, self.codec, held, self.scorer)
        self.volunteer = GroupWork(self.manifest, world.run, self.codec, bare)
