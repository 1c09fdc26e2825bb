"""Rewards of a run's completions, on learner and validators: procedural tasks here, data tasks in a sandbox.

The scorers of a data task may be the researcher's own code, and read what a stranger's machine sent. They run in a pool
of confined processes, which this file knows as a port: answers are submitted first and gathered later, so that those of
one author never hold up those of others. An answer that cannot be scored counts 0 and is counted; a scorer that can
score nothing at all stops the run, because a run without rewards learns nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from p2prl.errors import ConfigError
from p2prl.models.rewards.run_reward import Completion, JudgedSteps, Parts, RunReward
from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.scorer_failure_texts import failure_text
from p2prl.tasks.scorers.spec import Scoring, parse_spec, scorer_names

_NO_SCORING: Mapping[str, str] = MappingProxyType({})

_HOPELESS_GROUPS = 64
"""Groups of a task scored without one answer that the scorer could read: it never will."""

_HOPELESS_ACCOUNTS = 3
"""Authors of those groups, at least: one who sends what no scorer can read must not stop a run."""

_SCORER_FAILURES = frozenset({"error", "value"})
"""Failures of the scorer itself. The others depend on the answer's length, the row, or the machine."""

LENGTH = "length"
"""The part of a data task's penalty for overlong completions."""

MACHINE_FAILURES = frozenset({"timeout", "memory", "ended"})
"""Failures that another machine need not have."""


def failure_kind(failure: str) -> str:
    """The part of `ScoredAnswer.failure` before its colon; a stranger may have chosen the rest."""
    return failure.partition(":")[0]


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

    @property
    def parts(self) -> Sequence[float | None]:
        """What each scorer of the task's scoring added, in their order; nothing after a failure."""
        ...


class PendingScores(Protocol):
    """The scores of answers that were submitted."""

    def result(self) -> Sequence[ScoredAnswer]:
        """Wait until all are scored. `MachineError` when this machine cannot score."""
        ...


class AnswerScorer(Protocol):
    """Scores answers to rows of data where they can do no harm (`p2prl/tasks/sandbox/pool.py`)."""

    def submit(self, task: str, row: Row, completions: Sequence[Completion], *, account: bytes) -> PendingScores:
        """One score for each completion of a row. `account` is the public key that is charged for overruns."""
        ...

    def close(self) -> None:
        """End the processes."""
        ...


@dataclass(frozen=True, slots=True)
class GroupRewards:
    """The rewards of a group's completions, in their order."""

    values: tuple[float, ...]
    if_failed: tuple[float, ...]
    """What each reward would be, had its answer failed: the same where no answer can fail."""
    failures: tuple[str, ...] = ()
    """Why answers could not be scored, one text for each that could not."""
    parts: tuple[Parts, ...] = ()
    """The parts of each reward."""
    steps: tuple[JudgedSteps, ...] = ()
    """The steps of each completion, in a run whose reward judges them."""

    @property
    def depends_on_machine(self) -> bool:
        """Whether another machine may well have scored an answer that failed here."""
        return any(failure_kind(failure) in MACHINE_FAILURES for failure in self.failures)


def _without_success(parts: Parts) -> Parts:
    """What a reward model adds; success is told by scorer."""
    return {name: value for name, value in parts.items() if name != "success"}


PendingRewards = Callable[[], GroupRewards]
"""Waits for the rewards of a group whose scoring was started."""


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
        """Groups of a data task whose scorer failed on every answer, as long as it scored none."""
        self._authors: dict[str, set[bytes]] = {}
        """Some accounts that these groups are of, by task."""
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

    @property
    def is_scored_here(self) -> bool:
        """See `RunReward.is_scored_here`."""
        return self._reward.is_scored_here

    @property
    def cut(self) -> int | None:
        """See `RunReward.cut`."""
        return self._reward.cut

    def rewards(
        self, task: str, prompt: str, completions: Sequence[Completion], *, read: str, ending: str
    ) -> GroupRewards:
        """Rewards of completions of a procedural prompt. `read` and `ending` as in `RunReward.judge`."""
        found = self._reward.rewards(task, prompt, completions, read=read, ending=ending)
        return GroupRewards(found.values, if_failed=found.values, parts=found.parts, steps=found.steps)

    def of_success(self, success: Sequence[float]) -> GroupRewards:
        """Rewards of completions that nothing judges beside their success."""
        found = self._reward.add_up(success, ())
        return GroupRewards(found.values, if_failed=found.values, parts=found.parts)

    def success(self, task: str, prompt: str, completion: Completion) -> float:
        """The verdict of a procedural task on one completion, without the reward's weights."""
        return self._reward.score(task, prompt, completion).reward

    def start_data_rewards(
        self,
        task: str,
        row: Row,
        completions: Sequence[Completion],
        lengths: Sequence[int],
        *,
        account: bytes,
        read: str,
        ending: str,
    ) -> PendingRewards:
        """Begin to score completions of a row of data; their rewards include the scoring's penalty for their `tokens`.

        `account` is the public key of their sampler; empty for a sample of our own. `read` and `ending` as in
        `RunReward.judge`. Waiting raises `ConfigError` when the task's scorer has failed on everything that several
        accounts sent, and `MachineError` as the sandbox does.
        """
        penalties = [self._scoring[task].penalty(tokens) for tokens in lengths]
        pending = self._submit(task, row, completions, account=account)

        def gather() -> GroupRewards:
            judgements = self._reward.judge(task, "", completions, read=read, ending=ending)
            scored = self._gather(task, pending, account)
            values = [answer.value + penalty for answer, penalty in zip(scored, penalties, strict=True)]
            found, failed = self._reward.add_up(values, judgements), self._reward.add_up(penalties, judgements)
            failures = tuple(answer.failure for answer in scored if answer.failure)
            parts = tuple(
                self._parts_of(self._scoring[task], answer, penalty) | _without_success(part)
                for answer, penalty, part in zip(scored, penalties, found.parts, strict=True)
            )
            return GroupRewards(found.values, failed.values, failures, parts, found.steps)

        return gather

    def data_success(
        self, task: str, row: Row, completions: Sequence[Completion], *, account: bytes
    ) -> tuple[float, ...]:
        """The scorers' values for completions of a row of data. Errors as above."""
        pending = self._submit(task, row, completions, account=account)
        return tuple(answer.value for answer in self._gather(task, pending, account))

    def _parts_of(self, scoring: Scoring, answer: ScoredAnswer, penalty: float) -> Parts:
        """What each scorer has added to an answer's reward, and the penalty for its length."""
        names = scorer_names(scoring)
        told = list(answer.parts) if len(answer.parts) == len(names) else [None] * len(names)
        parts = {
            name: None if part is None else self._reward.of_success([part])[0]
            for name, part in zip(names, told, strict=True)
        }
        return parts if scoring.length_penalty is None else parts | {LENGTH: self._reward.of_success([penalty])[0]}

    def _submit(self, task: str, row: Row, completions: Sequence[Completion], *, account: bytes) -> PendingScores:
        assert self._answers is not None, "asked for rewards of data where nothing scores them"
        return self._answers.submit(task, row, completions, account=account)

    def _gather(self, task: str, pending: PendingScores, account: bytes) -> Sequence[ScoredAnswer]:
        scored = pending.result()
        failures = [answer.failure for answer in scored if answer.failure]
        self.failures += len(failures)
        if len(failures) < len(scored):
            self._scored.add(task)
        elif task not in self._scored and account:
            self._watch(task, failures, account)
        return scored

    def _watch(self, task: str, failures: Sequence[str], account: bytes) -> None:
        """Stop at a scorer that has failed by itself on every answer so far, of several authors."""
        if not all(failure_kind(failure) in _SCORER_FAILURES for failure in failures):
            return
        self._hopeless[task] += 1
        authors = self._authors.setdefault(task, set())
        if len(authors) < _HOPELESS_ACCOUNTS:
            authors.add(account)
        if self._hopeless[task] >= _HOPELESS_GROUPS and len(authors) >= _HOPELESS_ACCOUNTS:
            raise ConfigError(
                f"the scorer of {task} failed on every answer of the first {self._hopeless[task]} groups: "
                f"{failure_text(failures)}",
                remedy="Try the scorer on a few answers of the model, correct it, and make a new run: a run's scoring "
                "is part of its signed manifest. If only this machine fails, look for a missing package here.",
            )
