"""`verifiers`: single-turn tasksets of the library `verifiers` (0.4), their rows and their reward functions.

A taskset is an installed Python module. `init` reads its rows once and packs them; learner and validators import the
same module in the sandbox for its `@vf.reward` functions. What needs more than one answer of a model is refused: tools,
a judge model, a container, a simulated user, an environment of several agents.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

from p2prl.errors import ConfigError
from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.scorers.answer_text import UnusableRowError
from p2prl.tasks.scorers.extras import import_extra
from p2prl.tasks.scorers.source_settings import Progress, settings_of
from p2prl.tasks.task import MAX_SCORED_CHARS

PREFIX = "verifiers:"
COLUMN = "verifiers"
"""Column of a row with its taskset, settings and task data."""

MAX_ROWS = 10_000_000
"""Largest `size`: what bounds a taskset without an end."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_HOOKS = ("setup", "finalize", "score", "runtime_env")


class Taskset:
    """An installed taskset whose tasks are one prompt and one answer."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        """`ConfigError` when library or module is missing, a setting is refused, or one answer is not enough."""
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name[:64]!r} is no name of a taskset", remedy="Write its module's name: verifiers:my_taskset."
            )
        import_extra("verifiers.v1", "verifiers", scorer="verifiers")
        self._loaders = _library("utils.loaders")
        self.name = name
        try:
            config_type = self._loaders.taskset_config_type(name)
            self._config = config_type.model_validate({**settings, "id": name})
            self.task_type = self._loaders.task_type(name)
        except (ImportError, AttributeError, TypeError, ValueError) as error:  # pydantic's errors are ValueErrors
            raise ConfigError(
                f"the taskset {name!r} cannot be loaded: {str(error)[:300]}",
                remedy="Install its package, and check its name and the settings after `?`.",
            ) from error
        self._refuse_more_than_one_answer()

    def tasks(self, size: int | None) -> Iterator[Any]:
        """Its tasks, at most `size`. `ConfigError` for a taskset without an end when `size` is None."""
        taskset = self._loaders.load_taskset(self._config)
        if taskset.INFINITE and size is None:
            raise ConfigError(f"the taskset {self.name!r} has no end", remedy=f"Write verifiers:{self.name}?size=2000.")
        return itertools.islice(iter(taskset), size)

    def task(self, data: Mapping[str, Any]) -> Any:
        """A task from its stored data."""
        return self.task_type(self.task_type.data_type().model_validate(data), self._config.task)

    def _refuse_more_than_one_answer(self) -> None:
        base = _library("task").Task
        task, config = self.task_type, self._config.task
        single = _library("envs.single_agent").SingleAgentEnv
        changed = [name for name in _HOOKS if getattr(task, name) is not getattr(base, name)]
        reasons = {
            "needs a container": task.NEEDS_CONTAINER,
            "has tools": bool(
                task.toolsets(config) or type(self._loaders.load_taskset(self._config)).toolsets(self._config)
            ),
            "asks a judge model": bool(config.judges),
            f"has its own {changed[0] if changed else ''}()": bool(changed),
            "has its own environment": self._loaders.environment_class(self.name) is not single,
        }
        for reason, holds in reasons.items():
            if holds:
                raise ConfigError(
                    f"the taskset {self.name!r} {reason}, so one answer of the model is not enough to score it",
                    remedy="Choose a single-turn taskset whose rewards are computed from the answer alone.",
                )


def parse_source(source: str) -> tuple[str, dict[str, Any], int | None]:
    """Name, settings and number of rows of `verifiers:MODULE?size=2000&key=value`."""
    name, _, query = source.removeprefix(PREFIX).partition("?")
    settings = settings_of(name, query)
    size = settings.pop("size", None)
    if size is not None and (type(size) is not int or not 1 <= size <= MAX_ROWS):
        raise ConfigError(f"{name}: size is {size!r}", remedy=f"Set size within 1..{MAX_ROWS}.")
    return name, settings, size


def rows(source: str, on_progress: Progress | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a source: `prompt` as chat messages, `verifiers`, and `answer` if the task data requires one.

    `ConfigError` as `Taskset`, and for a task without a prompt of text. Runs the taskset's own code in this process.
    """
    name, settings, size = parse_source(source)
    taskset = Taskset(name, settings)
    field = taskset.task_type.data_type().model_fields.get("answer")
    answered = field is not None and field.is_required()
    for number, task in enumerate(taskset.tasks(size), start=1):
        data = task.data.model_dump(mode="json", exclude_defaults=True)
        row = {
            "prompt": _messages(name, task.data),
            COLUMN: {"taskset": name, "settings": settings, "data": data},
        }
        if answered:
            answer = data["answer"]
            row["answer"] = answer if isinstance(answer, str) else json.dumps(answer)
        yield row
        if on_progress is not None:
            on_progress(number, size or number)


class VerifiersScorer:
    """Scores by the weighted sum of the taskset's reward functions, as `Task.score` does without a runtime."""

    def __init__(self, name: str) -> None:
        """`ConfigError` when the library or the taskset is not installed."""
        self._name = name
        Taskset(name, {})
        self._trace, self._graph, self._types = _library("trace"), _library("graph"), _library("types")
        self._agent = self._trace.AgentInfo(config=_library("configs.agent").AgentConfig())
        self._tasksets: dict[str, Taskset] = {}

    def score(self, row: Row, completion: str, finished: bool) -> float:
        """Raises what a reward function raises, and `TypeError` when one waits."""
        entry = row.get(COLUMN)
        if not isinstance(entry, dict) or entry.get("taskset") != self._name:
            raise UnusableRowError(f"the row does not come from the taskset {self._name!r}")
        if len(completion) > MAX_SCORED_CHARS:
            return 0.0
        task = self._taskset(entry["settings"]).task(entry["data"])
        trace = self._trace_of(task, row["prompt"], completion, finished)
        available = {"task": task.data, "trace": trace}
        return sum((_weighted(function, available) for function in task.hooks("reward")), 0.0)

    def _taskset(self, settings: Mapping[str, Any]) -> Taskset:
        key = json.dumps(settings, sort_keys=True)
        if key not in self._tasksets:
            self._tasksets[key] = Taskset(self._name, settings)
        return self._tasksets[key]

    def _trace_of(self, task: Any, prompt: list[dict[str, str]], completion: str, finished: bool) -> Any:
        """The library's record of a rollout: the prompt's messages, then the model's one answer."""
        kinds = {"system": self._types.SystemMessage, "user": self._types.UserMessage}
        messages = [kinds.get(m["role"], self._types.AssistantMessage)(content=m["content"]) for m in prompt]
        nodes = [
            self._graph.MessageNode(message=message, parent=index - 1 if index else None)
            for index, message in enumerate(messages)
        ]
        reply = self._types.AssistantMessage(content=completion)
        nodes.append(self._graph.MessageNode(message=reply, parent=len(nodes) - 1 if nodes else None, sampled=True))
        call = self._trace.ModelCall(node=len(nodes) - 1, finish_reason="stop" if finished else "length")
        return self._trace.Trace(
            task=self._trace.TraceTask(type=type(task).__name__, data=task.data),
            verifiers=self._trace.VersionInfo(version="0"),  # its default asks git for a commit
            agent=self._agent,
            nodes=nodes,
            calls=[call],
            is_completed=True,
            ok=True,
        )


def _weighted(function: Callable[..., Any], available: Mapping[str, Any]) -> float:
    result = _finished(_library("utils.decorators").invoke(function, dict(available)), function.__name__)
    weight = float(getattr(function, "_vf_weight", 1.0))
    values = result.values() if isinstance(result, Mapping) else [result]
    return sum(weight * float(value) for value in values)


def _finished(result: Any, name: str) -> Any:
    """The value of a coroutine that never waits; any other value as it is."""
    if not inspect.iscoroutine(result):
        return result
    try:
        result.send(None)
    except StopIteration as end:
        return end.value
    result.close()
    raise TypeError(f"the reward {name!r} waits for something; the sandbox has no network and no event loop")


def _messages(name: str, data: Any) -> list[dict[str, str]]:
    prompt = data.prompt
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    else:
        prompt = [{"role": m.role, "content": m.content} for m in prompt or ()]
    if not prompt or not all(isinstance(message["content"], str) for message in prompt):
        raise ConfigError(
            f"a task of the taskset {name!r} has no prompt of text", remedy="Choose a taskset with prompts of text."
        )
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    return system + prompt


def _library(module: str) -> ModuleType:
    return import_extra(f"verifiers.v1.{module}", "verifiers", scorer="verifiers")
