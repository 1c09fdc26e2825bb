"""The parts of rewards, for people: what each scorer of a data task, or each part of a task's reward, has added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from p2prl.models.rewards.run_reward import Completion, RunReward
from p2prl.models.rewards.scoring import AnswerScorer
from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.scorers.spec import parse_spec, scorers_alone

Parts = dict[str, float | None]
"""What each part adds to a completion's reward, weights included; None where it could not be scored. The others' sum is
the reward."""

LENGTH = "length"
"""The part of a data task's penalty for overlong completions."""


def part_task(task: str, scorer: str) -> str:
    """The task of an `AnswerScorer` that scores with one of a task's scorers alone (`scorers_alone`)."""
    return f"{task}: {scorer}"


class RewardParts:
    """The parts of one run's rewards."""

    def __init__(self, reward: RunReward, scoring: Mapping[str, str], answers: AnswerScorer | None) -> None:
        """`scoring` has the spec of each data task; `answers` scores each `part_task`."""
        self._reward = reward
        self._scoring = {task: (parse_spec(spec), scorers_alone(spec)) for task, spec in scoring.items()}
        self._answers = answers

    def of_prompt(self, task: str, prompt: str, completions: Sequence[Completion]) -> list[Parts]:
        """The parts of completions of a procedural prompt."""
        return [dict(parts) for parts in self._reward.parts(task, prompt, completions)]

    def of_row(self, task: str, row: Row, completions: Sequence[Completion], lengths: Sequence[int]) -> list[Parts]:
        """The parts of completions of a row of data, which have `lengths` tokens."""
        assert self._answers is not None
        scoring, names = self._scoring[task]
        pending = {name: self._answers.submit(part_task(task, name), row, completions, account=b"") for name in names}
        parts: list[Parts] = [{} for _ in completions]
        for name, scores in pending.items():
            for part, answer in zip(parts, scores.result(), strict=True):
                part[name] = None if answer.failure else self._reward.of_success([answer.value])[0]
        if scoring.length_penalty is not None:
            for part, tokens in zip(parts, lengths, strict=True):
                part[LENGTH] = self._reward.of_success([scoring.penalty(tokens)])[0]
        return parts
