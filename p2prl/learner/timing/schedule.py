"""Schedule of a run: when to collect groups, take a training step, publish a policy version and finish.

A pure state machine over counts. A version is published before the first group is collected, after every κ updates
(κ = `publish_every`), and once more at the end. `publish_interval` measures which κ suits the swarm.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Action(Enum):
    """The learner's next action."""

    COLLECT = "collect"
    STEP = "step"
    PUBLISH = "publish"
    FINISH = "finish"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """Length and pace of a run."""

    groups_per_update: int
    """R: groups one update consumes."""
    publish_every: int
    """κ: updates between published versions."""
    updates: int
    """Updates after which the run ends; 0 runs until stopped."""


class Schedule:
    """Updates and versions so far, and what is due."""

    def __init__(self, config: ScheduleConfig, *, step: int, published_step: int | None) -> None:
        """`step` is the step to resume at; `published_step` that of the newest version, None before the first."""
        self._config = config
        self._step = step
        self._published_step = published_step
        self.publish_every = config.publish_every
        """Current κ; may be changed during the run."""
        self.target_updates = max(config.updates, step) if config.updates else 0
        """Step at which the run ends; 0 when it runs until stopped. A run resumed past its setting ends at that
        step."""

    @property
    def step(self) -> int:
        """Learner updates done."""
        return self._step

    @property
    def finished(self) -> bool:
        """Whether all updates of the run are done."""
        return bool(self.target_updates) and self._step >= self.target_updates

    def next_action(self, ready_groups: int) -> Action:
        """What is due, given how many verified groups wait."""
        done = self.finished
        behind = self._published_step is None or self._step - self._published_step >= self.publish_every
        if behind or (done and self._published_step != self._step):
            return Action.PUBLISH
        if done:
            return Action.FINISH
        return Action.STEP if ready_groups >= self._config.groups_per_update else Action.COLLECT

    def stepped(self) -> None:
        """Count one update."""
        self._step += 1

    def published(self) -> None:
        """Record that a version of the current step is published, or being written beside training."""
        self._published_step = self._step


SAMPLING_SHARE = 0.5
"""Share of the staleness bound that sampling may take; the other half is for waiting at the learner."""


def pause_s(update_s: float, *, sampling_s: float, staleness_bound: int, limit: float) -> float:
    """Seconds to wait after an update that took `update_s`.

    Groups that are sampled in `sampling_s` shall be at most half the bound old when they arrive. `limit` is the longest
    wait as a share of `update_s`; without one, a single slow machine could stop a run.
    """
    wanted_s = sampling_s / max(1.0, SAMPLING_SHARE * staleness_bound)
    return min(max(0.0, wanted_s - update_s), limit * update_s)
