"""The evaluation in progress: a slice of prompts at a time on the replay stage, then one line of results.

It shares the replay's model, which holds one policy at a time, so it costs no memory for weights, unless replayers have
models of their own: each slice loads the version it measures. An evaluation that a crash interrupts begins again, with
the newest version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from p2prl.clock import Clock
from p2prl.errors import MachineError
from p2prl.learner.evaluation.evaluation_plan import EvaluationConfig, SliceSize, TimeShare, version_due
from p2prl.learner.evaluation.results_file import ResultsFile
from p2prl.learner.storage import LearnerStorage
from p2prl.learner.timing.stages import Job
from p2prl.models.evaluation.pass_evaluation import EvaluationPrompt, EvaluationSet, evaluate_prompts
from p2prl.models.groups.group_work import GroupWork
from p2prl.models.replay.loaded_policy import LoadedPolicy
from p2prl.models.sampler_port import GenerationStopped, Sampler
from p2prl.swarm.policies.catalog import PolicyVersion
from p2prl.tasks.evaluation_report import PromptOutcome, metric_keys, recorded_answers, report_text, task_report


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of an evaluation: a job for the replay stage, and what to do with its result and seconds."""

    job: Job
    then: Callable[[Any, float], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationTools:
    """What an evaluation samples and scores with."""

    sampler: Sampler
    """Computes with the model of `policy`."""
    work: GroupWork
    sets: tuple[EvaluationSet, ...]
    """The prompts, by task; may be empty."""
    policy: LoadedPolicy | None = None
    """Of a model that nothing else computes with; None for the replay's."""
    frees_memory: bool = False
    """Whether a slice frees the keys and values it leaves, because an update may need their memory. It takes .2 s."""


class _Progress:
    """The evaluation of one version."""

    def __init__(self, policy: PolicyVersion, weights: Callable[[], memoryview], sets: Sequence[EvaluationSet]) -> None:
        self.policy = policy
        self.weights = weights
        """Opens its weights, readable although the version may leave the staleness window meanwhile."""
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
            "answers": [
                answer
                for each in self._sets
                for answer in recorded_answers(each.task, self.outcomes[each.task], pass_above=each.pass_above)
            ],
        }


class Evaluations:
    """Measures published versions, a slice at a time."""

    def __init__(
        self,
        *,
        tools: EvaluationTools,
        config: EvaluationConfig,
        storage: LearnerStorage,
        policy: LoadedPolicy,
        clock: Clock,
        on_notice: Callable[[str], None],
    ) -> None:
        self._tools = tools
        self._every = config.every if tools.sets else 0
        self._always = config.always
        self._storage = storage
        self._policy = policy
        self._clock = clock
        self._on_notice = on_notice
        self._results = ResultsFile(storage.paths.evaluations, on_notice)
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

    def is_due(self, *, finished: bool) -> bool:
        """Whether a version is being measured, or is to be. `finished` means that the newest version is the last."""
        if self._is_stopped:
            return False
        if self._progress is None:
            self._progress = self._begin(finished=finished)
        return self._progress is not None

    def next_slice(self, *, idle: bool) -> Slice | None:
        """The next slice of the version that is due, or None while there is no time for it.

        `idle` means that the learner has nothing else to do now.
        """
        progress = self._progress
        has_time = idle or self._always or self._share.allows(self._clock.now())
        if progress is None or self._is_stopped or not has_time:
            return None
        chosen = progress.next_prompts(self._size.prompts)
        assert chosen is not None, "an evaluation ends with its last prompt"
        task, prompts = chosen
        return Slice(partial(self._measure, progress, prompts), partial(self._measured, progress, task, idle))

    def _begin(self, *, finished: bool) -> _Progress | None:
        published, newest, measured = self._storage.published, self._storage.version, self._results.versions
        due = version_due(newest, measured, every=self._every, finished=finished, always=self._always)
        policy = None if due is None else published.at(due)
        if self._always and due is not None and (policy is None or not published.can_replay(due)):
            due, policy = newest, published.at(newest)  # too old to be read
        if policy is None or due is None or not published.can_replay(policy.manifest.version):
            return None
        self._tell_skipped(due)
        return _Progress(policy, published.weights(policy.manifest.version).open, self._tools.sets)

    def _tell_skipped(self, version: int) -> None:
        """Say which version was due before the one that is measured now."""
        last = max(self._results.versions, default=None)
        if last is None or version <= last + self._every:
            return
        why = "it was too old to be read" if self._always else "the one before took until now"
        hint = "" if self._always else "; always = true under [evaluation] in run.toml measures each that is due"
        self._on_notice(
            f"version {last + self._every} was due to be measured, and version {version} is instead: {why}{hint}"
        )

    def _measure(self, progress: _Progress, prompts: Sequence[EvaluationPrompt]) -> list[PromptOutcome] | MachineError:
        """The outcome of each prompt; none when it was stopped; the reason when this machine cannot. In the stage."""
        try:
            self._policy.load(progress.policy.digest, progress.weights)
            return evaluate_prompts(
                self._tools.sampler, self._tools.work, prompts, should_stop=lambda: self._is_stopped
            )
        except GenerationStopped:
            return []
        except MachineError as error:
            return error
        finally:
            if self._tools.frees_memory:
                self._tools.sampler.sleep()
                self._policy.forget()

    def _measured(
        self, progress: _Progress, task: str, idle: bool, outcomes: list[PromptOutcome] | MachineError, seconds: float
    ) -> None:
        """A slice has ended."""
        if not idle:
            self._share.spend(seconds)
        if isinstance(outcomes, MachineError):
            self._give_up(outcomes)
            return
        if outcomes:
            self._size.took(len(outcomes), seconds)
        progress.outcomes[task] += outcomes
        progress.seconds += seconds
        if progress.next_prompts(1) is None:
            self._progress = None
            self._finish(progress.result(self._clock.now()))

    def _finish(self, result: dict[str, Any]) -> None:
        self._results.add(result)
        for task, report in result["tasks"].items():
            self._on_notice(f"version {result['version']}, {task}: {report_text(report)}")

    def _give_up(self, error: MachineError) -> None:
        """Training goes on without evaluations."""
        self._progress = None
        self._every = 0
        self._on_notice(
            f"evaluation is off until the next start: {error}. Set every = 0 under [evaluation] in run.toml to turn it"
            " off for good."
        )
