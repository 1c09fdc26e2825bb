"""Materials of a preset, made before its run: rows to train on, rows to evaluate on, and demonstrations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from p2prl.errors import ConfigError
from p2prl.tasks.countdown import demonstration as countdown_demonstration
from p2prl.tasks.reasoning_mix import demonstrations, source
from p2prl.tasks.scorers.reasoning_gym_rows import rows as reasoning_gym_rows
from p2prl.tasks.task_spec import Demonstration
from p2prl.tasks.word_problems.problems import demonstration as word_problem_demonstration
from p2prl.tasks.word_problems.problems import word_problem_rows

TRAINED_ROWS, HELD_OUT_ROWS = 2000, 256
"""Rows of a preset's data: few, so that a run passes over them more than once."""

_REASONING_ROWS = 1200
"""Rows of each dataset that are drawn; a fifth of them may repeat."""

_REASONING_DEMONSTRATED = 1500
"""Rows of each dataset that the warm start of `reasoning` takes its questions from."""

_DEMONSTRATION_SEED = 1 << 20
"""Added to the seed of rows that are demonstrated, so that they are others than those trained and evaluated on."""

Progress = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Materials:
    """Options of `p2prl init` that a preset gives, and the demonstrations its model is warm-started on."""

    demonstration: Callable[[], Demonstration]
    """Makes the demonstrations, which may take seconds."""
    tasks: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    scorers: tuple[str, ...] = ()


def materials(preset: str, folder: Path, *, seed: int, on_progress: Progress) -> Materials:
    """Write a preset's rows into `folder`, which exists. `ConfigError` without the library that makes them."""
    return _MAKERS[preset](folder, seed, on_progress)


def _arithmetic(folder: Path, seed: int, on_progress: Progress) -> Materials:
    on_progress("writing word problems", 0.0)
    rows = word_problem_rows(seed)
    train = write_rows(folder / "train.jsonl", islice(rows, TRAINED_ROWS))
    held_out = write_rows(folder / "held_out.jsonl", islice(rows, HELD_OUT_ROWS))
    return Materials(
        demonstration=lambda: word_problem_demonstration,
        data=(f"arithmetic={train}",),
        held_out=(f"arithmetic={held_out}",),
        scorers=("number",),
    )


def _countdown(folder: Path, seed: int, on_progress: Progress) -> Materials:  # noqa: ARG001  # its prompts need no rows
    return Materials(demonstration=lambda: countdown_demonstration, tasks=("countdown",))


def _reasoning(folder: Path, seed: int, on_progress: Progress) -> Materials:
    stage = "making rows with reasoning-gym"
    on_progress(stage, 0.0)
    made = reasoning_gym_rows(source(size=_REASONING_ROWS, seed=seed), lambda done, of: on_progress(stage, done / of))
    rows = distinct(made)
    train = write_rows(folder / "train.jsonl", rows[HELD_OUT_ROWS:][:TRAINED_ROWS])
    held_out = write_rows(folder / "held_out.jsonl", rows[:HELD_OUT_ROWS])
    if len(rows) < HELD_OUT_ROWS + TRAINED_ROWS:
        raise ConfigError(
            f"reasoning-gym made {len(rows)} different rows, too few", remedy="Install the version p2prl names."
        )
    demonstrated = source(size=_REASONING_DEMONSTRATED, seed=seed + _DEMONSTRATION_SEED)
    return Materials(
        demonstration=lambda: demonstrations(list(reasoning_gym_rows(demonstrated))),
        data=(f"reasoning={train}",),
        held_out=(f"reasoning={held_out}",),
        scorers=("reasoning-gym",),
    )


_MAKERS: Mapping[str, Callable[[Path, int, Progress], Materials]] = {
    "arithmetic": _arithmetic,
    "countdown": _countdown,
    "reasoning": _reasoning,
}


def distinct(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without those whose prompt an earlier one has."""
    kept: dict[str, dict[str, Any]] = {}
    for row in rows:
        kept.setdefault(row["prompt"], row)
    return list(kept.values())


def write_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """Write rows as JSON lines, and return the path."""
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path
