"""Sources of rows that a library makes, by the prefix of `p2prl init --data`; any other source is a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from p2prl.tasks.scorers import reasoning_gym_rows, verifiers_taskset
from p2prl.tasks.scorers.source_settings import Progress

_SOURCES: Mapping[str, Callable[[str, Progress | None], Iterator[dict[str, Any]]]] = {
    reasoning_gym_rows.PREFIX: reasoning_gym_rows.rows,
    verifiers_taskset.PREFIX: verifiers_taskset.rows,
}


def is_generated(source: str) -> bool:
    """Whether `rows` makes this source's rows."""
    return source.startswith(tuple(_SOURCES))


def rows(source: str, on_progress: Progress | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a generated source, with the columns `prompt`, `answer` and one of the library's name.

    `ConfigError` when the source cannot be read, names nothing installed, or the library is missing.
    """
    (make,) = (make for prefix, make in _SOURCES.items() if source.startswith(prefix))
    return make(source, on_progress)
