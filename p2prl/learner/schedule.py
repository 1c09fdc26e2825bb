"""The learner's rhythm: collect, step, publish, finish. A pure state machine over counts.

PolicyPublisher follows every κ updates and once more at the end; version 0 goes out before the first group is asked
for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Action(Enum):
    """What the learner does next."""

    COLLECT = "collect"
    STEP = "step"
    PUBLISH = "publish"
    FINISH = "finish"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """How long a run is and how it is paced."""

    groups_per_update: int
    """R: groups one update consumes."""
    publish_every: int
    """κ: updates between published versions."""
    updates: int
    """Updates after which the run ends; 0 means it goes on until stopped."""


class Schedule:
    """Steps and versions so far, and what is due."""

    def __init__(self, config: ScheduleConfig, *, step: int, published_step: int | None) -> None:
        """`published_step` is the step of the newest published version; None before the first."""
        self._config = config
        self._step = step
        self._published_step = published_step
        self._publish_every = config.publish_every

    @property
    def step(self) -> int:
        """Learner updates done."""
        return self._step

    @property
    def finished(self) -> bool:
        """Whether the run's updates are done."""
        return bool(self._config.updates) and self._step >= self._config.updates

    def next_action(self, ready_groups: int) -> Action:
        """What is due, given how many verified groups wait."""
        done = self.finished
        behind = self._published_step is None or self._step - self._published_step >= self._publish_every
        if behind or (done and self._published_step != self._step):
            return Action.PUBLISH
        if done:
            return Action.FINISH
        return Action.STEP if ready_groups >= self._config.groups_per_update else Action.COLLECT

    def stepped(self) -> None:
        """One update is done."""
        self._step += 1

    def published(self) -> None:
        """A version of the current step is out."""
        self._published_step = self._step

    def repace(self, publish_every: int) -> None:
        """Publish every so many updates from now on."""
        self._publish_every = publish_every
