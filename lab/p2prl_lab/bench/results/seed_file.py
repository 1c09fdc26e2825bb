"""Stored results: one JSON line per seed, appended when its batch is done, so that a rerun does only new work."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from p2prl.disk_full import write_error
from p2prl.errors import IntegrityError, MachineError


class Seeded(Protocol):
    """A result that knows its seed."""

    @property
    def seed(self) -> int:
        """The seed of the run."""
        ...


S = TypeVar("S", bound=Hashable)
R = TypeVar("R", bound=Seeded)


class Line(msgspec.Struct, Generic[S, R], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the file; `Line[SettingType, ResultType]` is its schema."""

    setting: S
    """Everything about a run except its seed."""
    result: R


class SeedFile(Generic[S, R]):
    """A results file, read once and then appended to."""

    def __init__(
        self, path: Path, line: type[Line[S, R]], *, read_line: Callable[[bytes], Line[S, R] | None] | None = None
    ) -> None:
        """Read `path`, which need not exist. A last line truncated by a crash is dropped; IntegrityError on others.

        `read_line` decodes one line, None for one to ignore, and may raise `msgspec.MsgspecError`; without it lines
        have the schema `line`.
        """
        self._path = path
        self._results: dict[S, dict[int, R]] = {}
        read_line = read_line or msgspec.json.Decoder(line).decode
        try:
            data = path.read_bytes() if path.exists() else b""
        except OSError as error:
            raise MachineError(
                f"cannot read {path}: {error.strerror}", remedy="Set --out to a readable and writable folder."
            ) from error
        complete = data[: data.rfind(b"\n") + 1]
        if len(complete) < len(data):
            os.truncate(path, len(complete))
        for number, text in enumerate(complete.splitlines(), start=1):
            try:
                entry = read_line(text)
            except msgspec.MsgspecError as error:
                raise IntegrityError(
                    f"{path}, line {number}: {error}", remedy="Delete the line or the file."
                ) from error
            if entry is not None:
                self._results.setdefault(entry.setting, {})[entry.result.seed] = entry.result

    def missing(self, setting: S, seeds: Iterable[int]) -> list[int]:
        """The seeds that have no result yet."""
        return [seed for seed in seeds if seed not in self._results.get(setting, {})]

    def add(self, setting: S, results: Iterable[R]) -> None:
        """Append the results of one batch."""
        results = list(results)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.writelines(msgspec.json.encode(Line(setting=setting, result=result)) + b"\n" for result in results)
        except OSError as error:
            raise write_error(error, self._path) from error
        self._results.setdefault(setting, {}).update({result.seed: result for result in results})

    def of(self, setting: S, seeds: Iterable[int]) -> list[R]:
        """The existing results of these seeds, in the order given."""
        known = self._results.get(setting, {})
        return [known[seed] for seed in seeds if seed in known]

    def settings(self) -> list[S]:
        """Every setting with a result, in the order first seen."""
        return list(self._results)
