"""The reward of a completion: the task's score, and those of a process scorer or reward model where a run has them.

This is the only place where rewards are computed. The run manifest gives the reward (`success+0.2*process:clip`,
parsed by `p2prl/algorithms/reward_spec.py`); tasks and scorers come from `p2prl/tasks`; the parts are refined and
added up by `p2prl/algorithms/process_rewards.py`. Volunteers show the result to their owners. The learner recomputes it
from the tokens and trains only on its own result. The success of a data task comes from its own scorers, in a sandbox
(`run_scoring`). A reward model is on the learner's machine alone, so that nobody else can compute such a reward.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from p2prl.algorithms.process_rewards import completion_rewards, refine_steps
from p2prl.algorithms.reward_spec import parse_reward
from p2prl.errors import ConfigError
from p2prl.tasks.environment import Environment, EnvironmentTask
from p2prl.tasks.process_scorer import Judgement, ProcessScorer
from p2prl.tasks.task import Score, Task
from p2prl.tasks.task_registry import scorer_by_task, task_by_name

Completion = tuple[str, bool]
"""Text without the stop token, and whether a stop token ended it."""

Parts = dict[str, float | None]
"""What each part adds to a completion's reward, weights included; None where it could not be scored. The others' sum is
the reward."""


@dataclass(frozen=True, slots=True)
class JudgedSteps:
    """What each step of a completion earns, after Clip and Delta and with its factor; the rest is for its end."""

    ends: tuple[int, ...]
    """Index of each step's last character."""
    rewards: tuple[float, ...]
    rest: float
    """The reward of the completion without its steps: success and outcome."""


@dataclass(frozen=True, slots=True)
class Rewards:
    """The rewards of several completions, in their order."""

    values: tuple[float, ...]
    parts: tuple[Parts, ...]
    """What each part of the reward's text adds."""
    steps: tuple[JudgedSteps, ...] = ()
    """Empty where steps have no rewards of their own."""


class ModelJudge(Protocol):
    """A reward model, as a judge of completions (`p2prl/models/rewards/reward_model.py`)."""

    @property
    def cut(self) -> int:
        """Completions that were too long to be read to their end."""
        ...

    def judge(self, prompt: str, completion: str, *, ending: str, step_ends: Sequence[int] | None) -> Judgement:
        """Scores of a completion: those of the steps that end at `step_ends`, or without any that of the whole."""
        ...


class RunReward:
    """The reward of one run: its tasks, what judges their completions, and the weights of the parts."""

    def __init__(
        self,
        text: str,
        tasks: Iterable[str],
        *,
        data_tasks: Iterable[str] = (),
        model: ModelJudge | None = None,
        environments: Mapping[str, Environment] = MappingProxyType({}),
    ) -> None:
        """`text` is the manifest's `reward`, `tasks` the names of its tasks, `data_tasks` those of rows of data;
        `model` is its reward model, on the learner's machine; `environments` are those that the run brings.

        `ConfigError` for an unknown reward or task, and for a task that lacks the scorer the reward needs: no data task
        has one.
        """
        rows = tuple(data_tasks)
        names = tuple(name for name in tasks if name not in rows)
        self._config = parse_reward(text)
        brought = {name: EnvironmentTask(each) for name, each in environments.items()}
        self._tasks: dict[str, Task] = {name: brought.get(name) or task_by_name(name).task for name in names}
        several = [name for name, task in self._tasks.items() if isinstance(task, EnvironmentTask)]
        self._model = model
        self._judges = self._config.outcome_weight > 0 or self.judges_steps
        if self._judges and rows and not self._config.model:
            raise ConfigError(
                f"the reward {text} judges steps, and nothing judges those of {rows[0]}, which is data",
                remedy="Give --reward success; weigh several scorers in the task's own scoring. A reward model judges "
                "them: --reward-model.",
            )
        if self._config.model and several:
            raise ConfigError(
                f"a reward model reads answers of one turn, and those of {several[0]} have several",
                remedy="Leave out --reward-model, or give other tasks.",
            )
        if self._judges and brought and not self._config.model:
            raise ConfigError(
                f"the reward {text} judges steps, and nothing judges those of the environment {next(iter(brought))}",
                remedy="Give --reward success; an environment may give any reward from 0 to 1.",
            )
        self._scorers: dict[str, ProcessScorer] = {}
        if self._config.model:
            found = {name: task_by_name(name).process_scorer for name in names}
            self._scorers = {name: scorer for name, scorer in found.items() if scorer is not None}
        elif self._judges:
            self._scorers = {name: scorer_by_task(name) for name in names}

    @property
    def is_scored_here(self) -> bool:
        """Whether this machine has the run's reward model, if there is one."""
        return not self._config.model or self._model is not None

    @property
    def cut(self) -> int | None:
        """Completions that the reward model could not read to their end; None without one."""
        return None if self._model is None else self._model.cut

    def task(self, name: str) -> Task:
        """The procedural task of this name in the run."""
        return self._tasks[name]

    def score(self, task: str, prompt: str, completion: Completion) -> Score:
        """A procedural task's own verdict on one completion."""
        return self._tasks[task].score(prompt, *completion)

    def of_success(self, success: Iterable[float]) -> tuple[float, ...]:
        """What success adds to the rewards of completions."""
        return tuple(self._config.success_weight * verdict for verdict in success)

    @property
    def judges_steps(self) -> bool:
        """Whether steps have rewards of their own."""
        return self._config.process_weight > 0

    def judge(
        self, task: str, prompt: str, completions: Sequence[Completion], *, read: str = "", ending: str = ""
    ) -> tuple[Judgement, ...]:
        """Scores of completions beside success; nothing where the reward has success alone.

        A reward model gets the prompt as the policy `read` it, and `ending`, the text of the stop token.
        """
        if not self._judges:
            return ()
        if not self._config.model:
            return tuple(self._scorers[task].judge(prompt, *completion) for completion in completions)
        assert self._model is not None, "asked for rewards where the reward model is not"
        return tuple(
            self._model.judge(
                read,
                completion[0],
                ending=ending if completion[1] else "",
                step_ends=self._step_ends(task, prompt, completion) if self.judges_steps else None,
            )
            for completion in completions
        )

    def _step_ends(self, task: str, prompt: str, completion: Completion) -> tuple[int, ...]:
        """Index of the last character of each step: as the task's process scorer finds them, else of each line."""
        if (scorer := self._scorers.get(task)) is not None:
            return scorer.judge(prompt, *completion).ends
        return line_ends(completion[0])

    def add_up(self, success: Sequence[float], judgements: Sequence[Judgement]) -> Rewards:
        """Rewards of completions from their verdicts and, unless success is all, the scores of `judge`, in float64."""
        config, rests = self._config, self.of_success(success)
        if not judgements:
            return Rewards(rests, tuple({"success": value} for value in rests))
        scores_BGK, mask_BGK = _padded(judgements)
        outcomes = [judgement.outcome for judgement in judgements]
        rewards_BG = completion_rewards(
            torch.tensor([success], dtype=torch.float64),
            config,
            outcome_BG=torch.tensor([outcomes], dtype=torch.float64),
            step_scores_BGK=scores_BGK,
            step_mask_BGK=mask_BGK,
        )
        refined_BGK = config.process_weight * refine_steps(scores_BGK, mask_BGK, config)
        outcome_name, process_name = ("orm", "prm") if config.model else ("outcome", "process")
        parts: list[Parts] = []
        steps = []
        sums = refined_BGK.sum(dim=-1)[0].tolist()
        for judgement, row, whole, rest in zip(judgements, refined_BGK[0].tolist(), sums, rests, strict=True):
            of_outcome = config.outcome_weight * judgement.outcome
            named = {outcome_name: (config.outcome_weight, of_outcome), process_name: (config.process_weight, whole)}
            parts.append({"success": rest} | {name: value for name, (weight, value) in named.items() if weight})
            steps.append(JudgedSteps(judgement.ends, tuple(row[: len(judgement.steps)]), rest + of_outcome))
        values = tuple(rewards_BG[0].tolist())
        return Rewards(values, tuple(parts), tuple(steps) if self.judges_steps else ())

    def rewards(
        self, task: str, prompt: str, completions: Sequence[Completion], *, read: str = "", ending: str = ""
    ) -> Rewards:
        """Rewards of several completions of one prompt of a procedural task. `read` and `ending` as in `judge`."""
        success = [self.score(task, prompt, completion).reward for completion in completions]
        return self.add_up(success, self.judge(task, prompt, completions, read=read, ending=ending))


_LINE = re.compile(r"[^\n]*[^\s][^\n]*\n?")


def line_ends(text: str) -> tuple[int, ...]:
    """Index of the last character of each line that is not blank, its newline included: a step is a line, as process
    reward models are commonly trained."""
    return tuple(match.end() - 1 for match in _LINE.finditer(text))


def _padded(judgements: Sequence[Judgement]) -> tuple[Tensor, Tensor]:
    """Step scores of one group, (1, G, K) float64, and their mask."""
    longest = max(1, *(len(judgement.steps) for judgement in judgements))
    steps = [judgement.steps + (0.0,) * (longest - len(judgement.steps)) for judgement in judgements]
    counts = torch.tensor([[len(judgement.steps)] for judgement in judgements])
    return torch.tensor([steps], dtype=torch.float64), (torch.arange(longest) < counts).unsqueeze(0)


Decode = Callable[[Sequence[int]], str]
"""Token ids to text."""


def token_rewards(token_ids: Sequence[int], text: str, steps: JudgedSteps, decode: Decode) -> tuple[float, ...]:
    """For each token, the reward of the step it ends; not a number at the others.

    `text` is that of the tokens, without the stop token that may be the last. The last token always has a number: it
    ends the completion, which is rewarded there. Steps that end within one token add up.
    """
    found = [math.nan] * len(token_ids)
    found[-1] = steps.rest
    for end, reward in zip(steps.ends, steps.rewards, strict=True):
        place = _token_of(end, token_ids, text, decode)
        found[place] = reward if math.isnan(found[place]) else found[place] + reward
    return tuple(found)


def _token_of(end: int, token_ids: Sequence[int], text: str, decode: Decode) -> int:
    """Index of the token that completes the text up to and including the character at `end`.

    By halving, since a decoder reads a prefix in linear time: a token may hold a part of a character, and what a token
    adds to a text depends on those before it.
    """
    start = text[: end + 1]
    prefixes = range(1, len(token_ids) + 1)
    place = bisect_left(prefixes, True, key=lambda length: decode(token_ids[:length])[: end + 1] == start)
    return min(place, len(token_ids) - 1)
