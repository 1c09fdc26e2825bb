"""Results of evaluations in a run folder: `evaluations.jsonl`, one JSON object per version, each version once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from p2prl.disk_full import write_error
from p2prl.json_lines import JsonLines, read_json_lines, remove_unfinished_line


def read_results(path: Path) -> JsonLines:
    """Results in the order they were made; none if the file is missing."""
    return read_json_lines(path, required={"version": int, "tasks": dict})


class ResultsFile:
    """Appends results. A learner that was killed goes on with what the file has."""

    def __init__(self, path: Path, on_notice: Callable[[str], None]) -> None:
        """Read the file, and remove a line that a crash left unfinished. Unreadable lines are skipped and told."""
        self._path = path
        remove_unfinished_line(path)
        found = read_results(path)
        self._results = found.objects
        if notice := found.notice(path):
            on_notice(notice)

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
