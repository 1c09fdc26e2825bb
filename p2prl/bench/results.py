"""Results on disk: one JSON line a seed, appended as soon as its batch is done, so that a rerun does what is new."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from p2prl.bench.training import SeedResult, TrainingPlan
from p2prl.errors import IntegrityError, MachineError


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
        )


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    setting: Setting
    result: SeedResult


class ResultFile:
    """A file of results, read once and appended to."""

    def __init__(self, path: Path) -> None:
        """Read `path`, which need not exist. A last line cut short by a crash is dropped; IntegrityError on others."""
        self._path = path
        self._results: dict[Setting, dict[int, SeedResult]] = {}
        try:
            data = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise MachineError(f"cannot read {path}: {error}") from error
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(path, len(whole))
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                entry = msgspec.json.decode(line, type=_Line)
            except msgspec.MsgspecError as error:
                raise IntegrityError(
                    f"{path}, line {number}: {error}", remedy="Delete the line or the file."
                ) from error
            self._results.setdefault(entry.setting, {})[entry.result.seed] = entry.result

    def missing(self, setting: Setting, seeds: Iterable[int]) -> list[int]:
        """The seeds that have no result yet."""
        return [seed for seed in seeds if seed not in self._results.get(setting, {})]

    def add(self, setting: Setting, results: Iterable[SeedResult]) -> None:
        """Append the results of one batch."""
        results = list(results)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.writelines(
                    msgspec.json.encode(_Line(setting=setting, result=result)) + b"\n" for result in results
                )
        except OSError as error:
            raise MachineError(f"cannot write {self._path}: {error}", remedy="Free some space.") from error
        self._results.setdefault(setting, {}).update({result.seed: result for result in results})

    def of(self, setting: Setting, seeds: Iterable[int]) -> list[SeedResult]:
        """The results of these seeds that there are, in the order given."""
        known = self._results.get(setting, {})
        return [known[seed] for seed in seeds if seed in known]
