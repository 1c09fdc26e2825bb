"""The evaluation in progress: a slice of prompts at a time on the replay stage, then one line of results.

It shares the replay's model, which holds one policy at a time, so it costs no memory for weights; it loads the version
it measures before each slice, and leaves the model without a policy. An evaluation that a crash interrupts begins again
with the newest version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from p2prl.clock import Clock
from p2prl.errors import MachineError
from p2prl.learner.evaluation.config import EvaluationConfig
from p2prl.learner.evaluation.evaluation_plan import SliceSize, TimeShare, version_due
from p2prl.learner.evaluation.results_file import ResultsFile
from p2prl.learner.intake.group_checks import GroupChecks
from p2prl.learner.intake.verification import Replayer
from p2prl.learner.storage import LearnerStorage
from p2prl.models.group_work import GroupWork
from p2prl.models.pass_evaluation import EvaluationPrompt, EvaluationSet, evaluate_prompts
from p2prl.models.sampler_port import GenerationStopped, Sampler
from p2prl.swarm.policies.catalog import PolicyVersion
from p2prl.tasks.evaluation_report import PromptOutcome, metric_keys, report_text, task_report


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationTools:
    """What an evaluation samples and scores with."""

    sampler: Sampler
    """Computes with the replay's own model."""
    work: GroupWork
    sets: tuple[EvaluationSet, ...]
    """The prompts, by task; may be empty."""


class _Progress:
    """The evaluation of one version."""

    def __init__(self, policy: PolicyVersion, weights: memoryview, sets: Sequence[EvaluationSet]) -> None:
        self.policy = policy
        self.weights = weights
        """Mapped from disk: readable although the version may leave the staleness window meanwhile."""
        self.seconds = 0.0
        self.outcomes: dict[str, list[PromptOutcome]] = {each.task: [] for each in sets}
        self._sets = sets

    def next_prompts(self, most: int) -> tuple[str, tuple[EvaluationPrompt, ...]] | None:
        """The next prompts of one task, with its name; None when all are done."""
        for each in self._sets:
            done = len(self.outcomes[each.task])
            if done < len(each.prompts):
                return each.task, each.prompts[done : done + most]
        return None

    def result(self, time: float) -> dict[str, Any]:
        """The line of the results file."""
        return {
            "version": self.policy.manifest.version,
            "step": self.policy.manifest.step,
            "time": time,
            "seconds": round(self.seconds, 3),
            "tasks": {
                each.task: task_report(self.outcomes[each.task], split=each.split, pass_above=each.pass_above)
                for each in self._sets
            },
        }


class Evaluations:
    """Measures published versions between replays."""

    def __init__(
        self,
        *,
        tools: EvaluationTools,
        config: EvaluationConfig,
        storage: LearnerStorage,
        checks: GroupChecks,
        replayer: Replayer,
        clock: Clock,
        on_notice: Callable[[str], None],
    ) -> None:
        self._tools = tools
        self._every = config.every if tools.sets else 0
        self._storage = storage
        self._checks = checks
        self._replayer = replayer
        self._clock = clock
        self._on_notice = on_notice
        self._results = ResultsFile(storage.paths.evaluations)
        self._size = SliceSize()
        self._share = TimeShare(config.time_share, now=clock.now())
        self._progress: _Progress | None = None
        self._is_stopped = False

    @property
    def figures(self) -> dict[str, float]:
        """The newest result, as keys of the metrics log; empty before the first."""
        newest = self._results.newest
        if newest is None:
            return {}
        keys = {"evaluation/version": float(newest["version"]), "evaluation/step": float(newest["step"])}
        for task, report in newest["tasks"].items():
            keys |= {f"evaluation/{task}/{name}": value for name, value in metric_keys(report).items()}
        return keys

    def stop(self) -> None:
        """Give up the slice in progress soon, and begin no other."""
        self._is_stopped = True

    def advance(self, *, idle: bool, finished: bool = False) -> bool:
        """Begin a slice if one is due, the replay stage is free, and there is time. False when nothing is left to do.

        `idle` means that the learner has nothing else to do; `finished`, that the newest version is the run's last.
        """
        progress = self._progress or self._begin(finished=finished)
        if progress is None or self._is_stopped:
            return False
        if self._checks.is_replaying or not (idle or finished or self._share.allows(self._clock.now())):
            return True
        chosen = progress.next_prompts(self._size.prompts)
        assert chosen is not None, "an evaluation ends with its last prompt"
        task, prompts = chosen

        def done(outcomes: list[PromptOutcome] | MachineError, seconds: float) -> None:
            if not (idle or finished):
                self._share.spend(seconds)
            if isinstance(outcomes, MachineError):
                self._give_up(outcomes)
            elif outcomes:
                self._size.took(len(outcomes), seconds)
                self._record(progress, task, outcomes, seconds)

        self._checks.run_between(self._job(progress, prompts), done)
        return True

    def _begin(self, *, finished: bool) -> _Progress | None:
        published = self._storage.published
        due = version_due(self._storage.version, self._results.versions, every=self._every, finished=finished)
        policy = None if due is None else published.at(due)
        if policy is not None:
            self._progress = _Progress(policy, published.weights(policy.manifest.version), self._tools.sets)
        return self._progress

    def _job(
        self, progress: _Progress, prompts: Sequence[EvaluationPrompt]
    ) -> Callable[[], list[PromptOutcome] | MachineError]:
        """One slice: the outcome of each prompt; none when it was stopped; the reason when this machine cannot."""
        sampler, work, replayer = self._tools.sampler, self._tools.work, self._replayer

        def run() -> list[PromptOutcome] | MachineError:
            try:
                replayer.load(progress.policy.digest, progress.weights)
                return evaluate_prompts(sampler, work, prompts, should_stop=lambda: self._is_stopped)
            except GenerationStopped:
                return []
            except MachineError as error:
                return error
            finally:
                sampler.sleep()  # an update may need the memory of the keys and values
                replayer.forget()

        return run

    def _record(self, progress: _Progress, task: str, outcomes: list[PromptOutcome], seconds: float) -> None:
        progress.outcomes[task] += outcomes
        progress.seconds += seconds
        if progress.next_prompts(1) is not None:
            return
        self._progress = None
        result = progress.result(self._clock.now())
        self._results.add(result)
        for name, report in result["tasks"].items():
            self._on_notice(f"version {result['version']}, {name}: {report_text(report)}")

    def _give_up(self, error: MachineError) -> None:
        """Training goes on without evaluations."""
        self._progress = None
        self._every = 0
        self._on_notice(
            f"evaluation is off until the next start: {error}. Set every = 0 under [evaluation] in run.toml to turn it"
            " off for good."
        )
