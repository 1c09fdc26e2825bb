"""Rows of reasoning-gym datasets for `p2prl init --data reasoning-gym:NAME?size=2000&seed=1`.

The library draws from sets in places, so the same seed makes the same prompts on every machine only under
`PYTHONHASHSEED=0`, which must be set before Python starts: `reasoning_gym_program` runs in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import Any

from p2prl.errors import ConfigError, MachineError
from p2prl.tasks.scorers.reasoning_gym_scorer import refuse_unsafe
from p2prl.tasks.scorers.source_settings import Progress, settings_of

PREFIX = "reasoning-gym:"

DEFAULT_ROWS = 1_000
MAX_ROWS = 1_000_000
"""Rows of one dataset: at 1 ms to 50 ms each, more would take a day to make."""

MAX_SEED = 2**31 - 1

_PROGRAM = "p2prl.tasks.scorers.reasoning_gym_program"
_PART = re.compile(r",(?=[a-z][a-z0-9_]*(?:[?,]|$))")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


@dataclass(frozen=True, kw_only=True, slots=True)
class GymDataset:
    """One dataset of the mix."""

    name: str
    size: int = DEFAULT_ROWS
    """Rows, 1..1,000,000."""
    seed: int = 0
    """0..2^31 − 1."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further fields of the dataset's own configuration."""

    def __post_init__(self) -> None:
        """`ConfigError` for a number outside its range, or a dataset whose scorer executes answers."""
        refuse_unsafe(self.name)
        for name, least, most in (("size", 1, MAX_ROWS), ("seed", 0, MAX_SEED)):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise ConfigError(f"{self.name}: {name} is {value!r}", remedy=f"Set {name} within {least}..{most}.")

    def document(self) -> dict[str, Any]:
        """The request to `reasoning_gym_program`."""
        return {"name": self.name, "settings": {**self.settings, "size": self.size, "seed": self.seed}}


def parse_source(source: str) -> tuple[GymDataset, ...]:
    """The datasets of `reasoning-gym:NAME?key=value&key=value,NAME?...`.

    Values are JSON where they can be, else text. `size` and `seed` of the last part hold for parts that state none.
    `ConfigError` for a text of another form.
    """
    parts = []
    for part in _PART.split(source.removeprefix(PREFIX)):
        name, _, query = part.partition("?")
        if not source.startswith(PREFIX) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"{source[:100]!r} names no reasoning-gym dataset",
                remedy="Write reasoning-gym:NAME?size=2000&seed=1, such as reasoning-gym:leg_counting?size=2000.",
            )
        parts.append((name, settings_of(name, query)))
    shared = {key: value for key, value in parts[-1][1].items() if key in ("size", "seed")}
    datasets = []
    for name, own in parts:
        settings = shared | own
        numbers = {key: settings.pop(key) for key in ("size", "seed") if key in settings}
        datasets.append(GymDataset(name=name, settings=settings, **numbers))
    if len({dataset.name for dataset in datasets}) != len(datasets):
        raise ConfigError("a reasoning-gym dataset is named twice", remedy="Name each once, with the size you want.")
    return tuple(datasets)


def rows(source: str, on_progress: Progress | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a source: `prompt`, `reasoning_gym`, and `answer` unless a dataset of the mix has none.

    Datasets alternate, so that the end of the rows holds all of them. `ConfigError` for an unknown dataset or setting,
    or without the library; `MachineError` when the process that makes the rows dies.
    """
    datasets = parse_source(source)
    total, made = sum(dataset.size for dataset in datasets), 0
    for document in _documents(json.dumps([dataset.document() for dataset in datasets])):
        if "error" in document:
            raise ConfigError(str(document["error"]), remedy=str(document["remedy"]))
        yield document
        made += 1
        if on_progress is not None:
            on_progress(made, total)
    if made != total:
        raise MachineError(
            f"reasoning-gym made {made} of {total} rows", remedy="Run it again; report the dataset if it fails again."
        )


def _documents(request: str) -> Iterator[dict[str, Any]]:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with TemporaryFile() as complaints:
        program = subprocess.Popen(
            [sys.executable, "-m", _PROGRAM, request], stdout=subprocess.PIPE, stderr=complaints, env=environment
        )
        try:
            assert program.stdout is not None
            for line in program.stdout:
                yield json.loads(line)
            if program.wait() != 0:
                complaints.seek(0)
                last = complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise MachineError(
                    f"reasoning-gym failed: {last[:200]}", remedy="Choose other settings, or another dataset."
                )
        finally:
            program.kill()
            program.communicate()
