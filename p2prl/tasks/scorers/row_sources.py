"""Sources of rows that a library makes, by the prefix of `p2prl init --data`; any other source is a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from p2prl.tasks.scorers import reasoning_gym_rows, verifiers_taskset
from p2prl.tasks.scorers.source_settings import Progress

_SOURCES: Mapping[str, Callable[[str, Progress | None], Iterator[dict[str, Any]]]] = {
    reasoning_gym_rows.PREFIX: reasoning_gym_rows.rows,
    verifiers_taskset.PREFIX: verifiers_taskset.rows,
}


class GeneratedRows:
    """A source in the shape of `p2prl.tasks.data.data_source.DataSource`. Its rows are made anew each time."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._share = 0.0

    @property
    def share_done(self) -> float:
        """Share of the rows that has been made, 0..1; 1 for a source that does not tell how many there will be."""
        return self._share

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row. `ConfigError` as `rows`."""
        return rows(self._source, self._told)

    def place(self, number: int) -> str:
        """Where row `number` (from 0) is, for a message."""
        return f"{self._source[:60]}, row {number + 1}"

    def _told(self, made: int, total: int) -> None:
        self._share = made / total


def source_name(source: str) -> str:
    """A name for the data: those of its datasets, without their settings."""
    return "-".join(re.findall(r"(?:^|,)([A-Za-z_][A-Za-z0-9_-]*)", source.partition(":")[2]))


def is_generated(source: str) -> bool:
    """Whether `rows` makes this source's rows."""
    return source.startswith(tuple(_SOURCES))


def rows(source: str, on_progress: Progress | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a generated source, with the columns `prompt`, one of the library's name, and `answer` where every
    row has one.

    `ConfigError` when the source cannot be read, names nothing installed, or the library is missing.
    """
    (make,) = (make for prefix, make in _SOURCES.items() if source.startswith(prefix))
    return make(source, on_progress)
