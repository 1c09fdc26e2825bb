"""The learner's main loop: take messages, check groups, train, publish, and announce the end of the run.

A thin shell around the intake (receives groups), the checks (replay and settle them), pacing (decides what is due),
training (computes updates), the publisher (publishes versions) and the journal. Replay and training run behind stages,
so with threads none of them keeps messages waiting. `assembly` builds the parts and resumes the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from p2prl.errors import ProcessLostError
from p2prl.learner.following.followed import Followed
from p2prl.learner.intake.group_checks import GroupChecks
from p2prl.learner.intake.inbox import Inbox
from p2prl.learner.intake.verified_group import VerifiedGroup
from p2prl.learner.publishing.policy_publisher import PolicyPublisher
from p2prl.learner.shutdown import Shutdown
from p2prl.learner.signing_sender import SigningSender
from p2prl.learner.standby_orders import StandbyOrders
from p2prl.learner.storage import LearnerStorage
from p2prl.learner.timing.next_update import Action, Pacing
from p2prl.learner.timing.training_stage import Activity, Work, share_at_work, share_without_groups
from p2prl.learner.update import Training
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.swarm import signals

_START_POLL_S = 0.5
"""Wait for messages while the network process starts."""

_IDLE_POLL_S = 0.2
"""Wait for messages in an idle turn."""


class Learner:
    """The learner of one run. It is given every part of it, because none of them knows the others."""

    def __init__(
        self,
        *,
        storage: LearnerStorage,
        sender: SigningSender,
        inbox: Inbox,
        checks: GroupChecks,
        training: Training,
        pacing: Pacing,
        standby: StandbyOrders,
        publisher: PolicyPublisher,
        shutdown: Shutdown,
        followed: Followed,
    ) -> None:
        self._storage = storage
        self._sender = sender
        self._inbox = inbox
        self._checks = checks
        self._training = training
        self._pacing = pacing
        self._standby = standby
        self._publisher = publisher
        self._shutdown = shutdown
        self._followed = followed
        self._stopping = False

    @property
    def step(self) -> int:
        """Updates done."""
        return self._training.step

    @property
    def target_updates(self) -> int:
        """Step at which the run ends; 0 when it runs until stopped. Show this number, not the setting."""
        return self._pacing.target_updates

    @property
    def finished(self) -> bool:
        """Whether all updates of the run are done."""
        return self._pacing.finished

    @property
    def version(self) -> int:
        """Newest published version; −1 before the first."""
        return self._storage.version

    @property
    def model(self) -> Any:
        """The model in training, at the current step."""
        return self._training.model

    def counts(self) -> dict[str, int]:
        """Number of groups by state."""
        return self._storage.journal.groups.counts()

    def status(self) -> dict[str, object]:
        """State of the run for `status.json`, beside the metrics of the newest update: the last version is published
        and measured after it."""
        share = self._publisher.written_share
        return {
            "target_updates": self.target_updates,
            "finished": self.finished,
            "version": self.version,
            **self._checks.evaluation_figures,
            **({} if share is None else {"publishing": round(share, 2)}),
        }

    def stop(self) -> None:
        """Finish the update in progress, save everything, and return from `run`."""
        self._stopping = True
        self._checks.stop_evaluating()

    def introduce(self, network: NetworkPort) -> None:
        """Announce every policy a volunteer may still need to a new network process. Called at each of its starts."""
        policies = self._storage.policies_to_announce(self.step, sweep=not self._publisher.busy)
        messages: list[control.ToNetwork] = [
            signals.Publish(raw) for raw in (*policies, *self._publisher.heads.current())
        ]
        messages.append(signals.SetLedgerHeight(self._storage.journal.ledger.height))
        messages.append(signals.Publish(self._sender.sign_ledger_head(step=self.step, finished=self.finished)))
        for message in self._sender.passed(messages):
            network.send(message)

    def attach(self, network: NetworkPort) -> None:
        """Send through this network from now on."""
        self._sender.attach(network)

    def run(self, network: NetworkPort, *, on_up: Callable[[tuple[str, ...]], None]) -> None:
        """Train until the run's updates are done or `stop` is called. `on_up` gets the dialable addresses."""
        self.attach(network)
        try:
            while not network.addresses and not self._stopping:
                self._read(_START_POLL_S)
            if network.addresses:
                on_up(network.addresses)
            while not self._stopping and self.turn(wait_s=_IDLE_POLL_S) is not Action.FINISH:
                pass
            self._finish_stages()
            self._training.stage.run(self._training.checkpoint())
            self._training.stage.finish(wait=True)
            self._await_standby()
            if not self._stopping:
                self._shutdown.announce_end(step=self.step, is_stopped=lambda: self._stopping)
            self._await_standby()
        except (KeyboardInterrupt, ProcessLostError):
            network.close()
            raise  # at once: the threads end with the process, and the journal resumes their jobs
        except BaseException:
            network.close()
            self.close()
            raise
        network.close()
        self.close()

    def turn(self, *, wait_s: float) -> Action:
        """Answer messages, check groups, and begin the one action that is due. Waits only when there is nothing to do.

        The action is `COLLECT` as well while the training stage is busy, and while a version is being written that the
        next one, or the end, waits for.
        """
        self._training.check()
        if pause_left_s := self._pacing.pause_left_s:
            wait_s = min(wait_s, pause_left_s)  # no message may come to end the pause
        action = Action.COLLECT if self._training.stage.busy else self._pacing.next_action(self._checks.ready_groups)
        is_waiting = self._publisher.busy and action in (Action.PUBLISH, Action.FINISH)
        if is_waiting:
            action = Action.COLLECT
        idle = action is Action.COLLECT and not self._checks.is_due(self.step)
        self._read(wait_s if idle else 0.0)
        self._checks.evaluate(idle=idle and not self._training.stage.busy and not self._checks.unsettled_groups)
        if self._checks.start(step=self.step):
            self._send_head()
        self._finish_checks()  # before the action: an update may train on these groups
        if action is Action.PUBLISH:
            self._publish()
        elif action is Action.STEP:
            self._step()
        elif is_waiting:
            self._training.stage.waits_for(Activity.PUBLISH)
        elif action is Action.COLLECT:
            self._training.stage.waits_for(
                Activity.WAIT_REPLAY if self._checks.unsettled_groups else Activity.WAIT_GROUPS
            )
        self._finish_jobs()  # last: a stage without a thread has done by now what this turn began
        self._publisher.heads.renew()
        self._standby.send_due()
        return action

    def close(self) -> None:
        """End the threads and close the files; everything is already on disk."""
        self._checks.close()
        self._followed.close()
        self._publisher.close()
        self._training.close()
        self._storage.close()

    def _read(self, timeout_s: float) -> None:
        self._inbox.read(timeout_s, step=self.step, finished=self.finished)

    def _finish_jobs(self) -> None:
        self._finish_checks()
        self._training.stage.finish()
        if (version := self._publisher.finish()) is not None:
            self._pacing.version_sent(version)

    def _finish_checks(self) -> None:
        if self._checks.finish(step=self.step):
            self._send_head()

    def _finish_stages(self) -> None:
        """Complete the jobs in progress, and answer messages meanwhile."""
        while self._training.stage.busy or self._publisher.busy:
            self._training.check()
            self._read(_IDLE_POLL_S)
            self._finish_jobs()
        if self._checks.finish(step=self.step, wait=True):
            self._send_head()

    def _await_standby(self) -> None:
        """Let messages that wait for a standby learner leave, until it is left behind; at a stop they are on disk."""
        while self._followed.holds_messages and not self._stopping:
            self._read(_IDLE_POLL_S)

    def _send_head(self) -> None:
        self._sender.send_ledger_head(step=self.step, finished=False)

    def _publish(self) -> None:
        step = self.step
        if self._publisher.resend(step=step):
            self._pacing.version_copied()
            self._pacing.version_sent(self.version)
            return

        self._training.stage.run(self._version(step))

    def _version(self, step: int) -> Work:
        """Publish the weights of a step: training waits for their copy alone."""
        weights = yield Activity.PUBLISH, partial(self._publisher.copy, self._training.engine)
        self._publisher.begin(weights, step=step)
        self._pacing.version_copied()

    def _step(self) -> None:
        figures = self._inbox.figures | self._checks.figures | self._publisher.figures
        figures |= self._pacing.figures | self._standby.figures | self._followed.figures
        self._training.stage.run(self._training.update(figures, on_updated=self._updated))

    def _updated(self, batch: list[VerifiedGroup], seconds: float, shares: Mapping[str, float]) -> None:
        self._checks.update_ended(seconds)
        self._pacing.batch_trained(
            [group.verified_at for group in batch if group.verified_at is not None],
            seconds,
            at_work=share_at_work(shares),
            ready_groups=self._checks.ready_groups,
        )
        self._standby.updated(waited=share_without_groups(shares), waiting_groups=self._checks.waiting_groups)
