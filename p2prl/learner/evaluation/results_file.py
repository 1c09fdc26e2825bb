"""Results of evaluations in a run folder: `evaluations.jsonl`, one JSON object per version, each version once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from p2prl.disk_full import write_error

_NAMED = 8
"""Unreadable lines that a notice names."""


class ResultsFile:
    """Appends results. A learner that was killed goes on with what the file has."""

    def __init__(self, path: Path, on_notice: Callable[[str], None]) -> None:
        """Read the file, and remove a line that a crash left unfinished. Unreadable lines are skipped and told."""
        self._path = path
        self._results, unreadable = _read(path)
        if unreadable:
            numbers = ", ".join(map(str, unreadable[:_NAMED])) + (" …" if len(unreadable) > _NAMED else "")
            on_notice(
                f"{path}: skipped {len(unreadable)} unreadable line(s), as a power failure leaves them: {numbers}."
                " Delete them to end this notice."
            )

    @property
    def versions(self) -> frozenset[int]:
        """Versions that have a result."""
        return frozenset(result["version"] for result in self._results)

    @property
    def newest(self) -> Mapping[str, Any] | None:
        """The result of the highest version; None before the first."""
        return max(self._results, key=lambda result: result["version"], default=None)

    def add(self, result: dict[str, Any]) -> None:
        """Append the result of a version that has none. On disk when it returns. `MachineError` when it cannot be."""
        assert result["version"] not in self.versions
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(result, sort_keys=True) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise write_error(error, self._path) from error
        self._results.append(result)


def _read(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """The results, and the numbers of the lines, from 1, that hold none."""
    if not path.exists():
        return [], []
    data = path.read_bytes()
    complete = data[: data.rfind(b"\n") + 1]
    if len(complete) < len(data):
        path.write_bytes(complete)
    results, unreadable = [], []
    for number, line in enumerate(complete.splitlines(), start=1):
        if (result := _result(line)) is None:
            unreadable.append(number)
        else:
            results.append(result)
    return results, unreadable


def _result(line: bytes) -> dict[str, Any] | None:
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):
        return None
    usable = isinstance(result, dict) and type(result.get("version")) is int and isinstance(result.get("tasks"), dict)
    return result if usable else None
