"""Schedule of a run, and its pace: when to collect, train, publish and finish, and how often to publish.

A pure state machine over counts. A version is published before the first group is collected, after every κ updates
(κ = `publish_every`), and once more at the end. `publish_interval` measures which κ suits the swarm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from p2prl.clock import Clock
from p2prl.learner.timing.live_forecast import Forecaster
from p2prl.learner.timing.publish_interval import PublishInterval


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


class Pacing:
    """Decides what is due, and measures updates, broadcasts and the volunteers' pace."""

    def __init__(
        self,
        schedule: Schedule,
        interval: PublishInterval,
        forecaster: Forecaster,
        clock: Clock,
        *,
        automatic: bool,
        pause: Callable[[float], float],
        on_notice: Callable[[str], None],
    ) -> None:
        """With `automatic` the measured interval is applied, otherwise it is only measured. `pause` says how long to
        wait after an update of a number of seconds (`pause_s`)."""
        self._schedule = schedule
        self._interval = interval
        self._forecaster = forecaster
        self._clock = clock
        self._automatic = automatic
        self._on_notice = on_notice
        self._pause = pause
        self._paused_until = clock.now()
        self._paused_s = 0.0

    @property
    def finished(self) -> bool:
        """Whether all updates of the run are done."""
        return self._schedule.finished

    @property
    def target_updates(self) -> int:
        """Step at which the run ends; 0 when it runs until stopped."""
        return self._schedule.target_updates

    @property
    def publish_every(self) -> int:
        """Updates between versions at present."""
        return self._schedule.publish_every

    def next_action(self, ready_groups: int) -> Action:
        """What is due, given how many verified groups wait."""
        action = self._schedule.next_action(ready_groups)
        return Action.COLLECT if action is Action.STEP and self.pause_left_s else action

    @property
    def pause_left_s(self) -> float:
        """Seconds until the next update may begin; 0 when it may now."""
        return max(0.0, self._paused_until - self._clock.now())

    @property
    def figures(self) -> dict[str, float]:
        """Publish interval, pause and forecast, as keys of the metrics log."""
        return {"publish_every": self.publish_every, "pause_s": self._paused_s, **self._forecaster.figures}

    def group_verified(self, peer: bytes, version: int, *, trains: bool = True) -> None:
        """Record that a peer delivered a group of a version, which has passed now: the version has reached it.

        A group that no update will train on (`trains` is false) brings none nearer.
        """
        now = self._clock.now()
        self._interval.delivered(peer, version, now)
        if trains:
            self._forecaster.delivered(peer, now)

    def version_copied(self) -> None:
        """Record that a version of the current step is on its way: training goes on."""
        self._schedule.published()

    def version_sent(self, version: int) -> None:
        """Record that a version was sent."""
        self._interval.published(version, self._clock.now())

    def batch_trained(self, verified_at: Sequence[float], seconds: float, *, at_work: float, ready_groups: int) -> None:
        """Count one update, which took `seconds`, and change the interval if the measurements suggest it.

        `verified_at` are the times at which groups of its batch passed their checks, as far as they are known.
        `at_work` is the share of the time since the update before in which the learner did not wait for groups.
        """
        self._schedule.stepped()
        now = self._clock.now()
        self._paused_s = self._pause(seconds)
        self._paused_until = now + self._paused_s
        self._interval.updated(now)
        if missed := self._forecaster.updated(now, at_work=at_work, ready=ready_groups):
            self._on_notice(missed)
        for at in verified_at:
            self._interval.used(now - at)
        choice = self._interval.choice
        if self._automatic and choice.publish_every != self._schedule.publish_every:
            self._schedule.publish_every = choice.publish_every
            fits = "" if choice.feasible else "; the staleness bound allows no longer interval"
            self._on_notice(
                f"publishing a version every {choice.publish_every} updates from now on: it takes"
                f" {choice.broadcast_s:.0f} s to reach the swarm, an update takes {choice.train_s:.1f} s{fits}"
            )
