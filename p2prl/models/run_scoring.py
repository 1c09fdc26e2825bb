"""Rewards of a run's completions, on learner and validators: procedural tasks here, data tasks in a sandbox.

The scorers of a data task may be the researcher's own code, and read what a stranger's machine sent. They run in a pool
of confined processes, which this file knows as a port. An answer that cannot be scored counts 0 and is counted; a
scorer that can score nothing at all stops the run, because a run without rewards learns nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from p2prl.errors import ConfigError
from p2prl.models.rewards import Completion, RunReward
from p2prl.tasks.data.packed_rows import Row
from p2prl.tasks.scorers.spec import parse_spec

_NO_SCORING: Mapping[str, str] = MappingProxyType({})

_HOPELESS_GROUPS = 64
"""Groups of a task scored without one answer that the scorer could read: it never will."""


class ScoredAnswer(Protocol):
    """What became of one answer."""

    @property
    def value(self) -> float:
        """Its score; 0 after a failure."""
        ...

    @property
    def failure(self) -> str:
        """Why it could not be scored (timeout, memory, error …); empty if it was."""
        ...


class AnswerScorer(Protocol):
    """Scores answers to rows of data where they can do no harm (`p2prl/tasks/sandbox/pool.py`)."""

    def score(
        self, task: str, row: Row, completions: Sequence[Completion], *, account: bytes
    ) -> Sequence[ScoredAnswer]:
        """One score for each completion of a row. `account` is the public key that is charged for overruns."""
        ...

    def close(self) -> None:
        """End the processes."""
        ...


class RunScoring:
    """The rewards of one run, as far as this machine can compute them."""

    def __init__(
        self, reward: RunReward, answers: AnswerScorer | None = None, scoring: Mapping[str, str] = _NO_SCORING
    ) -> None:
        """Without `answers` the rows of data have no reward: on a volunteer, and on a validator that runs no scorer.

        `scoring` has the scoring spec of each data task by name. `RemoteProtocolError` when one cannot be read.
        """
        self._reward = reward
        self._scoring = {task: parse_spec(spec) for task, spec in scoring.items()} if answers is not None else {}
        self._answers = answers
        self._hopeless: Counter[str] = Counter()
        """Groups of a data task without a scored answer, as long as none had any."""
        self._scored: set[str] = set()
        """Data tasks of which an answer has been scored."""
        self.failures = 0
        """Answers that could not be scored."""

    @property
    def scores_data(self) -> bool:
        """Whether rows of data are scored here."""
        return self._answers is not None

    def close(self) -> None:
        """End the processes that score."""
        if self._answers is not None:
            self._answers.close()

    def rewards(self, task: str, prompt: str, completions: Sequence[Completion]) -> tuple[float, ...]:
        """Rewards of completions of a procedural prompt."""
        return self._reward.rewards(task, prompt, completions)

    def of_success(self, success: Sequence[float]) -> tuple[float, ...]:
        """Rewards of completions whose steps nothing judges."""
        return self._reward.of_success(success)

    def success(self, task: str, prompt: str, completion: Completion) -> float:
        """The verdict of a procedural task on one completion, without the reward's weights."""
        return self._reward.score(task, prompt, completion).reward

    def data_rewards(
        self, task: str, row: Row, completions: Sequence[Completion], lengths: Sequence[int], *, account: bytes
    ) -> tuple[float, ...]:
        """Rewards of completions of a row of data, with the scoring's length penalty for their `tokens`.

        `ConfigError` when the task's scorer has failed on everything.
        """
        penalty = self._scoring[task].penalty
        values = self.data_success(task, row, completions, account=account)
        return self._reward.of_success(value + penalty(tokens) for value, tokens in zip(values, lengths, strict=True))

    def data_success(
        self, task: str, row: Row, completions: Sequence[Completion], *, account: bytes
    ) -> tuple[float, ...]:
        """The scorers' values for completions of a row of data. Errors as `data_rewards`."""
        assert self._answers is not None, "asked for rewards of data where nothing scores them"
        scored = self._answers.score(task, row, completions, account=account)
        failures = [answer.failure for answer in scored if answer.failure]
        self.failures += len(failures)
        if task not in self._scored:
            self._watch(task, failures, len(scored))
        return tuple(answer.value for answer in scored)

    def _watch(self, task: str, failures: Sequence[str], answers: int) -> None:
        """Stop at a scorer that has failed on every answer so far."""
        if len(failures) < answers:
            self._scored.add(task)
            return
        self._hopeless[task] += 1
        if self._hopeless[task] >= _HOPELESS_GROUPS:
            raise ConfigError(
                f"the scorer of {task} failed on every answer of the first {_HOPELESS_GROUPS} groups: {failures[-1]}",
                remedy="Try the scorer on a few answers of the model, correct it, and make a new run: a run's scoring "
                "is part of its signed manifest. If only this machine fails, look for a missing package here.",
            )
