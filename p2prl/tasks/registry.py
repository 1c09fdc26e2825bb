"""Tasks by the names a run manifest gives them."""

from __future__ import annotations

import difflib

from p2prl.errors import ConfigError
from p2prl.tasks import chain4, walk12
from p2prl.tasks.base import Task

_TASKS: dict[str, Task] = {chain4.NAME: chain4.Chain4(), walk12.NAME: walk12.Walk12()}


def task_names() -> tuple[str, ...]:
    """Every known task name, sorted."""
    return tuple(sorted(_TASKS))


def task_by_name(name: str) -> Task:
    """The task of this name; `ConfigError` with the nearest names when there is none."""
    task = _TASKS.get(name)
    if task is None:
        near = difflib.get_close_matches(name[:64], _TASKS, n=3, cutoff=0.4) or task_names()
        raise ConfigError(f"no task is called {name[:64]!r}", remedy=f"did you mean {', '.join(near)}?")
    return task
