"""Benchmark environments: a task, its alphabet, its demonstrations and the decoder that fits it.

Any task with a small model and demonstrations can be benchmarked. All prompts of a task must have the same length, so
that nothing is padded before a completion.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from p2prl.errors import ConfigError, LocalProtocolError
from p2prl.tasks.process_scorer import ProcessScorer
from p2prl.tasks.task import Task
from p2prl.tasks.task_registry import TASKS, task_by_name
from p2prl.tasks.task_spec import Demonstration, SmallModel, TaskSpec, TurnsDemonstration
from p2prl_lab.bench.training.decoder_shape import DecoderShape
from p2prl_lab.bench.training.letter_chains import ARRIVE8, ARRIVE40, FLIP8, ROWS8, LetterChain, MovingTask
from p2prl_lab.bench.training.march512 import MARCH512
from p2prl_lab.bench.training.split4 import SPLIT4
from p2prl_lab.bench.training.strict8 import STRICT8

Draft = Callable[[str, str], str]

_SPECIAL_TOKENS = 2
"""Token ids after the symbols: beginning of a text and end of a completion."""

BENCHMARK_TASKS: Mapping[str, TaskSpec] = MappingProxyType({spec.name: spec for spec in (STRICT8, SPLIT4, MARCH512)})
"""Tasks for benchmarks alone: no run can name one, so peers need not agree on them."""

MOVING_TASKS: Mapping[str, MovingTask] = MappingProxyType(
    {each.spec.name: each for each in (ARRIVE8, FLIP8, ROWS8, ARRIVE40)}
)
"""Tasks that change while a policy trains: `NAME:PERIOD`, the updates between changes."""

USUAL_PERIOD = 32
"""Updates between changes of a moving task named without a period."""

LONG_TOKENS = 128
"""Longer completions are trained and evaluated in smaller batches, or one update would take seconds."""

MOST_PROMPT_SYMBOLS = 1024
"""Longest prompt of a task. At this length the attention of one update takes a gigabyte; it grows with the square."""

_REMEDY = "Correct the task; “A task” in docs/extending.md has an example."

_SIZED = re.compile(r"(?P<task>.+)@(?P<width>[1-9][0-9]{0,3})x(?P<layers>[1-9][0-9]?)", re.ASCII)
_PERIODIC = re.compile(r"(?P<task>[^:]+):(?P<period>[1-9][0-9]{0,5})", re.ASCII)
_HEAD_WIDTH = 24
"""Width of an attention head of a model whose size is given; that of the small models' default."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What a moving task asks, by update."""

    moving: MovingTask
    period: int
    """Updates between changes."""

    def task_at(self, update: int) -> Task:
        """The phase asked at an update, counted from 0."""
        phase, phases = update // self.period, self.moving.phases
        return phases[phase % len(phases) if self.moving.repeats else min(phase, len(phases) - 1)]


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A task with its alphabet, decoder shape and warm start, ready for a benchmark."""

    task: Task
    symbols: str
    """One token each, in this order."""
    max_new_tokens: int
    """Completion limit, tokens, the end included."""
    demonstration: Demonstration
    """Seed → (prompt, completion), for the warm start."""
    shape: DecoderShape
    warm_steps: int = 600
    """Optimizer updates of the warm start."""
    warm_learning_rate: float = 4e-3
    """Peak learning rate of the warm start."""
    result_version: int = 1
    """Incremented when the task, its scoring or anything above changes: results of an older version are not reused."""
    size: str = ""
    """WIDTHxLAYERS of a decoder that is not the task's own; empty for its own."""
    schedule: Schedule | None = None
    """Of a moving task; then `task` is one of its phases."""
    origin: str = ""
    """Digest of the file the task comes from; empty for an installed task. Results of another digest are not reused."""
    judge: ProcessScorer | None = None
    """Scores steps in the place of the task's process scorer."""

    @property
    def name(self) -> str:
        """The text that `environment_by_name` makes this environment of."""
        period = f":{self.schedule.period}" if self.schedule else ""
        return self.task.name + period + (f"@{self.size}" if self.size else "")

    @property
    def warm_name(self) -> str:
        """What its warm start depends on of the name: not the period."""
        return f"{self.task.name}@{self.size}" if self.size else self.task.name

    def at(self, update: int) -> Environment:
        """What is asked at an update: itself, unless the task moves."""
        return self if self.schedule is None else replace(self, task=self.schedule.task_at(update))

    @property
    def is_long(self) -> bool:
        """Whether completions may be so long that batches are small."""
        return self.max_new_tokens > LONG_TOKENS

    @property
    def prompts_per_update(self) -> int:
        """Prompts of one learner update under delay, a multiple of the four samplers; 8 completions each."""
        if self.schedule is not None:
            return self.schedule.moving.prompts_per_update
        return 4 if self.is_long else 16

    @property
    def warm_batch(self) -> int:
        """Demonstrations of one update of the warm start."""
        if not self.is_long:
            return 128
        return 16 if self.schedule is None else 32

    @property
    def evaluated_prompts(self) -> tuple[int, int]:
        """Fresh prompts of an evaluation, and of each of the last ones, unless a plan says otherwise."""
        if self.schedule is not None:  # the whole curve is reported, not its end
            return 128, 128
        return (32, 128) if self.is_long else (256, 1024)

    @property
    def evaluate_every(self) -> int:
        """Updates between evaluations, unless a plan says otherwise: at most 16 on a moving task, so that each
        phase has two where its updates can be divided so."""
        if self.schedule is None:
            return 20
        period = self.schedule.period
        return max(each for each in range(1, 17) if period % each == 0 and (each == 1 or 2 * each <= period))

    @property
    def updates(self) -> int:
        """Updates of a run, unless a plan says otherwise: six periods of a moving task."""
        return 200 if self.schedule is None else 6 * self.schedule.period

    @property
    def begin_token(self) -> int:
        """Precedes every prompt."""
        return len(self.symbols)

    @property
    def end_token(self) -> int:
        """Ends every completion."""
        return len(self.symbols) + 1

    @cached_property
    def prompt_length(self) -> int:
        """Symbols of a prompt, the same for every seed."""
        return len(self.task.prompt(0))

    def prompt(self, seed: int) -> str:
        """The prompt of a seed. ConfigError when the task raises, or its prompt does not fit."""
        try:
            prompt = self.task.prompt(seed)
            unknown = sorted(set(prompt) - set(self.symbols))
        except Exception as error:  # a stranger's task may raise anything at all
            raise broken_task(self.task.name, f"seed {seed} raises {type(error).__name__}: {error}") from error
        if unknown:
            raise broken_task(self.task.name, f"seed {seed} uses {unknown[0]!r}, which is not among its symbols")
        if len(prompt) != self.prompt_length:
            raise broken_task(
                self.task.name, f"the prompts of seeds 0 and {seed} differ in length; all need one length"
            )
        return prompt

    def encode(self, text: str) -> list[int]:
        """Token ids of a text of this environment's symbols, without special tokens."""
        return [self.symbols.index(symbol) for symbol in text]

    @property
    def draft(self) -> Draft | None:
        """Guesses how a long completion goes on, where the task can: (prompt, what is written so far) → the rest. Short
        ones are sampled faster without."""
        return self.task.draft if self.is_long and isinstance(self.task, LetterChain) else None

    def drafted_tokens(self, prompt: str, begun: Sequence[int]) -> list[int]:
        """Token ids of a guess, the end included. LocalProtocolError for a task that cannot guess."""
        if self.draft is None:
            raise LocalProtocolError(f"{self.name} has no drafts")
        # A special token among them has no symbol; any guess will do after it.
        text = "".join(self.symbols[token] if token < len(self.symbols) else self.symbols[0] for token in begun)
        return [*self.encode(self.draft(prompt, text)), self.end_token]

    def prompt_tokens(self, prompt: str) -> list[int]:
        """Token ids of a prompt, the beginning included."""
        return [self.begin_token, *self.encode(prompt)]

    def reward(self, prompt: str, tokens: Sequence[int], finished: bool) -> float:
        """Reward of a completion of `tokens`, its end token included if it has one. ConfigError: see `score_of`."""
        symbols = tokens[:-1] if finished else tokens
        if any(token >= len(self.symbols) for token in symbols):
            return 0.0
        return score_of(self.task, prompt, "".join(self.symbols[token] for token in symbols), finished)


def score_of(task: Task, prompt: str, completion: str, finished: bool) -> float:
    """The task's reward. ConfigError when it raises, or gives no number within 0..1."""
    try:
        reward = task.score(prompt, completion, finished).reward
        legal = 0.0 <= reward <= 1.0
    except Exception as error:  # a stranger's task may raise anything at all
        reason = f"its score of {completion[:64]!r} raises {type(error).__name__}: {error}"
        raise broken_task(task.name, reason) from error
    if not legal:
        raise broken_task(task.name, f"{completion[:64]!r} is scored {reward}; a reward within 0..1 is needed")
    return reward


def broken_task(name: str, reason: str) -> ConfigError:
    """The error of a task that a benchmark cannot train on."""
    return ConfigError(f"task {name[:64]!r} cannot be benchmarked: {reason}", remedy=_REMEDY)


def _what_is_trained(spec: TaskSpec) -> tuple[SmallModel, Demonstration] | str:
    """What the benchmarks need of a task, or why it cannot be benchmarked."""
    if spec.small_model is None or spec.demonstration is None:
        return "it has no small model or no demonstrations"
    if isinstance(spec.demonstration, TurnsDemonstration):
        return "its episodes have several turns"
    return spec.small_model, spec.demonstration


def environment_by_name(name: str) -> Environment:
    """The environment of the task `name`; ConfigError when there is none, or it cannot be benchmarked.

    `NAME@WIDTHxLAYERS` is the task with a decoder of another size, heads of 24 and feed-forward layers of four times
    the width: `chain4@96x3`. `NAME:PERIOD` is a moving task that changes every PERIOD updates: `arrive8:64@96x3`.
    """
    sized = _SIZED.fullmatch(name)
    if sized is not None:
        return _resized(environment_by_name(sized["task"]), int(sized["width"]), int(sized["layers"]))
    periodic = _PERIODIC.fullmatch(name)
    bare, period = (periodic["task"], int(periodic["period"])) if periodic else (name, USUAL_PERIOD)
    if bare in MOVING_TASKS:
        moving = MOVING_TASKS[bare]
        still = _environment_of(bare, moving.spec)
        return replace(still, schedule=Schedule(moving=moving, period=period), warm_steps=moving.warm_steps).at(0)
    try:
        spec = BENCHMARK_TASKS.get(name) or task_by_name(name)
    except ConfigError as error:
        if name in TASKS.names():  # a plugin that cannot be loaded
            raise
        fit = [known for known in TASKS.names() if not isinstance(_what_is_trained(task_by_name(known)), str)]
        remedy = f"Choose one of {', '.join((*fit, *BENCHMARK_TASKS, *MOVING_TASKS))}."
        raise ConfigError(f"unknown task {name!r}", remedy=remedy) from error
    return _environment_of(name, spec)


def _environment_of(name: str, spec: TaskSpec) -> Environment:
    trained = _what_is_trained(spec)
    if isinstance(trained, str):
        raise ConfigError(
            f"task {name!r} cannot be benchmarked: {trained}",
            remedy="Choose a task of one turn with a small model and demonstrations, such as chain4.",
        )
    model, demonstration = trained
    return Environment(
        task=spec.task,
        symbols=model.symbols,
        max_new_tokens=spec.max_new_tokens,
        demonstration=demonstration,
        # One unused token makes the size equal to that of `p2prl/models/small_models/tiny_models.py`, whose alphabet
        # has a padding token.
        shape=DecoderShape(
            vocabulary=len(model.symbols) + _SPECIAL_TOKENS + 1,
            context=model.context,
            width=model.width,
            feedforward=model.feedforward,
            layers=model.layers,
            heads=model.heads,
        ),
        result_version=spec.result_version,
        origin="" if name in BENCHMARK_TASKS or name in MOVING_TASKS else TASKS.origin(name),
    )


def _resized(environment: Environment, width: int, layers: int) -> Environment:
    if width % _HEAD_WIDTH:
        raise ConfigError(
            f"a width of {width} is not a multiple of {_HEAD_WIDTH}", remedy="Write a size such as chain4@96x3."
        )
    shape = replace(environment.shape, width=width, feedforward=4 * width, layers=layers, heads=width // _HEAD_WIDTH)
    resized = replace(environment, shape=shape, size=f"{width}x{layers}")
    if environment.schedule is None:
        return resized
    # Adam moves every weight by the rate, so a wider layer's outputs by as many times more.
    return replace(resized, warm_learning_rate=environment.warm_learning_rate * environment.shape.width / width)
