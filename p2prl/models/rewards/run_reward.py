"""The reward of a completion: the task's score, plus the scores of its process scorer where the run asks for them.

This is the only place where rewards are computed. The run manifest gives the reward (`success+0.2*process:clip`,
parsed by `p2prl/algorithms/reward_spec.py`); tasks and scorers come from `p2prl/tasks`; the parts are refined and
added up by `p2prl/algorithms/reward_shaping.py`. Volunteers show the result to their owners. The learner recomputes it
from the tokens and trains only on its own result. The success of a data task comes from its own scorers, in a sandbox
(`run_scoring`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from p2prl.algorithms.reward_shaping import completion_rewards, refine_steps
from p2prl.algorithms.reward_spec import parse_reward
from p2prl.errors import ConfigError
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


class RunReward:
    """The reward of one run: its tasks, their process scorers and the weights of the parts."""

    def __init__(self, text: str, tasks: Iterable[str], *, data_tasks: Iterable[str] = ()) -> None:
        """`text` is the manifest's `reward`, `tasks` the names of its tasks, `data_tasks` those of rows of data.

        `ConfigError` for an unknown reward or task, and for a task that lacks the scorer the reward needs: no data task
        has one.
        """
        rows = tuple(data_tasks)
        names = tuple(name for name in tasks if name not in rows)
        self._config = parse_reward(text)
        self._tasks: dict[str, Task] = {name: task_by_name(name).task for name in names}
        self._judges_steps = self._config.outcome_weight > 0 or self._config.process_weight > 0
        if self._judges_steps and rows:
            raise ConfigError(
                f"the reward {text} judges steps, and nothing judges those of {rows[0]}, which is data",
                remedy="Give --reward success; weigh several scorers in the task's own scoring.",
            )
        self._scorers: dict[str, ProcessScorer] = (
            {name: scorer_by_task(name) for name in names} if self._judges_steps else {}
        )

    def task(self, name: str) -> Task:
        """The procedural task of this name in the run."""
        return self._tasks[name]

    def score(self, task: str, prompt: str, completion: Completion) -> Score:
        """A procedural task's own verdict on one completion."""
        return self._tasks[task].score(prompt, *completion)

    def of_success(self, success: Iterable[float]) -> tuple[float, ...]:
        """Rewards of completions whose steps nothing judges."""
        return tuple(self._config.success_weight * verdict for verdict in success)

    @property
    def judges_steps(self) -> bool:
        """Whether steps have rewards of their own."""
        return self._config.process_weight > 0

    def steps(self, task: str, prompt: str, completions: Sequence[Completion]) -> tuple[JudgedSteps, ...]:
        """The steps of several completions of one prompt of a procedural task, whose rewards judge steps."""
        judgements = [self._scorers[task].judge(prompt, *completion) for completion in completions]
        scores_BGK, mask_BGK = _padded(judgements)
        refined = (self._config.process_weight * refine_steps(scores_BGK, mask_BGK, self._config))[0].tolist()
        success = [self.score(task, prompt, completion).reward for completion in completions]
        return tuple(
            JudgedSteps(
                judgement.ends,
                tuple(row[: len(judgement.steps)]),
                self._config.success_weight * verdict + self._config.outcome_weight * judgement.outcome,
            )
            for judgement, row, verdict in zip(judgements, refined, success, strict=True)
        )

    def rewards(self, task: str, prompt: str, completions: Sequence[Completion]) -> tuple[float, ...]:
        """Rewards of several completions of one prompt of a procedural task, computed in float64."""
        success = [self.score(task, prompt, completion).reward for completion in completions]
        if not self._judges_steps:
            return self.of_success(success)
        judgements = [self._scorers[task].judge(prompt, *completion) for completion in completions]
        scores_BGK, mask_BGK = _padded(judgements)
        rewards_BG = completion_rewards(
            torch.tensor([success], dtype=torch.float64),
            self._config,
            outcome_BG=torch.tensor([[judgement.outcome for judgement in judgements]], dtype=torch.float64),
            step_scores_BGK=scores_BGK,
            step_mask_BGK=mask_BGK,
        )
        return tuple(rewards_BG[0].tolist())

    def parts(self, task: str, prompt: str, completions: Sequence[Completion]) -> tuple[Parts, ...]:
        """What success, outcome and process add to the reward of each completion; those the reward names alone."""
        config = self._config
        parts: list[Parts] = [
            {"success": config.success_weight * self.score(task, prompt, completion).reward}
            for completion in completions
        ]
        if self._judges_steps:
            judgements = [self._scorers[task].judge(prompt, *completion) for completion in completions]
            refined = refine_steps(*_padded(judgements), config).sum(dim=-1)[0].tolist()
            for part, judgement, process in zip(parts, judgements, refined, strict=True):
                part |= {
                    "outcome": config.outcome_weight * judgement.outcome,
                    "process": config.process_weight * process,
                }
        weights = {
            "success": config.success_weight,
            "outcome": config.outcome_weight,
            "process": config.process_weight,
        }
        return tuple({name: value for name, value in part.items() if weights[name] != 0} for part in parts)


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
