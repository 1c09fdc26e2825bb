"""Tasks by the names a run manifest gives them, and the process scorers of those that have one."""

from __future__ import annotations

import difflib

from p2prl.errors import ConfigError
from p2prl.tasks import chain4, chain4_process, walk12, walk12_process
from p2prl.tasks.process_scorer import ProcessScorer
from p2prl.tasks.task import Task

_TASKS: dict[str, Task] = {chain4.NAME: chain4.Chain4(), walk12.NAME: walk12.Walk12()}
_SCORERS: dict[str, ProcessScorer] = {
    chain4.NAME: chain4_process.Chain4Process(),
    walk12.NAME: walk12_process.Walk12Process(),
}


def task_names() -> tuple[str, ...]:
    """Every known task name, sorted."""
    return tuple(sorted(_TASKS))


def task_by_name(name: str) -> Task:
    """The task of this name; `ConfigError` with the nearest names when there is none."""
    task = _TASKS.get(name)
    if task is None:
        near = difflib.get_close_matches(name[:64], _TASKS, n=3, cutoff=0.4) or task_names()
        raise ConfigError(f"no task is called {name[:64]!r}", remedy=f"Did you mean {', '.join(near)}?")
    return task


def scorer_by_task(name: str) -> ProcessScorer:
    """The process scorer of the task of this name; `ConfigError` when it has none."""
    task_by_name(name)
    if name not in _SCORERS:
        raise ConfigError(f"task {name!r} has no process scorer", remedy="Choose a reward of success alone.")
    return _SCORERS[name]
