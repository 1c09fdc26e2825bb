"""Results of evaluations in a run folder: `evaluations.jsonl`, one JSON object per version, each version once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2prl.disk_full import write_error


class ResultsFile:
    """Appends results. A learner that was killed goes on with what the file has."""

    def __init__(self, path: Path) -> None:
        """Read the file, and remove a line that a crash left unfinished."""
        self._path = path
        self._results = _read(path)

    @property
    def versions(self) -> frozenset[int]:
        """Versions that have a result."""
        return frozenset(result["version"] for result in self._results)

    @property
    def newest(self) -> Mapping[str, Any] | None:
        """The result of the highest version; None before the first."""
        return max(self._results, key=lambda result: result["version"], default=None)

    def add(self, result: dict[str, Any]) -> None:
        """Append the result of a version that has none. `MachineError` when it cannot be written."""
        assert result["version"] not in self.versions
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(result, sort_keys=True) + "\n")
        except OSError as error:
            raise write_error(error, self._path) from error
        self._results.append(result)


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    data = path.read_bytes()
    complete = data[: data.rfind(b"\n") + 1]
    if len(complete) < len(data):
        path.write_bytes(complete)
    return [json.loads(line) for line in complete.splitlines()]
