"""Tasks by the names that run manifests use: those of p2prl, then those of installed packages.

A manifest selects one of them by name and never brings its code: a worker whose owner has not installed the task's
package cannot take part in the run.
"""

from __future__ import annotations

from p2prl.errors import ConfigError
from p2prl.plugins import Registry
from p2prl.tasks.process_scorer import ProcessScorer
from p2prl.tasks.task_spec import TaskSpec

TASKS: Registry[TaskSpec] = Registry(
    "p2prl.tasks",
    kind="task",
    builtin={
        "chain4": "p2prl.tasks.chain4:CHAIN4",
        "countdown": "p2prl.tasks.countdown:COUNTDOWN",
        "walk12": "p2prl.tasks.walk12:WALK12",
        "guess": "p2prl.tasks.guess:GUESS",
    },
    expected=TaskSpec,
)


def task_by_name(name: str) -> TaskSpec:
    """The task of this name. `ConfigError` when none is installed, or when its own name differs."""
    spec = TASKS.get(name)
    if spec.name != name:
        raise ConfigError(
            f"the task registered as {name!r} has the name {spec.name[:64]!r}",
            remedy="Register a task under its own name, which manifests and rollout groups use.",
        )
    return spec


def scorer_by_task(name: str) -> ProcessScorer:
    """The process scorer of a task. `ConfigError` when it has none."""
    scorer = task_by_name(name).process_scorer
    if scorer is None:
        raise ConfigError(f"task {name!r} has no process scorer", remedy="Use the reward `success` alone.")
    return scorer
