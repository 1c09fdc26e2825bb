"""Pacing: the schedule, the measured publish interval, which changes κ if the run allows it, and the forecast."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from p2prl.clock import Clock
from p2prl.learner.timing.live_forecast import Forecaster
from p2prl.learner.timing.publish_interval import PublishInterval
from p2prl.learner.timing.schedule import Action, Schedule


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
        wait after an update of a number of seconds (`step_pace`)."""
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

    def group_verified(self, peer: bytes, version: int) -> None:
        """Record that a peer delivered a group of a version, which has passed now: the version has reached it."""
        now = self._clock.now()
        self._interval.delivered(peer, version, now)
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
