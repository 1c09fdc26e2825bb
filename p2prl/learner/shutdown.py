"""End of a run: announce the final ledger head until the swarm is quiet, and issue receipts for late groups."""

from __future__ import annotations

from collections.abc import Callable

from p2prl.clock import Clock
from p2prl.learner.intake.group_checks import GroupChecks
from p2prl.learner.intake.inbox import Inbox
from p2prl.learner.signing_sender import SigningSender

_QUIET_S = 6.0
"""How long the learner stays after the last group arrived: twice the redial time of a peer that lost its link."""

_REPEAT_S = 1.0
"""Period of further announcements, for peers that have just reconnected."""

_LONGEST_S = 15.0
"""Longest stay after the checks of the groups that were stored, even if groups keep arriving."""

_LONGEST_CHECKS_S = 300.0
"""Longest time for those checks. What is left stays in the journal, unsettled: a swarm that outran training for hours
can have left hours of replays."""

_LONGEST_EVALUATION_S = 120.0
"""Longest stay for the evaluation of the last version, which says what the run has reached."""


class Shutdown:
    """Keeps a finished learner reachable until the groups in flight have their receipts."""

    def __init__(self, inbox: Inbox, checks: GroupChecks, sender: SigningSender, clock: Clock) -> None:
        self._inbox = inbox
        self._checks = checks
        self._sender = sender
        self._clock = clock

    def announce_end(self, *, step: int, is_stopped: Callable[[], bool]) -> None:
        """Tell everyone that the run has ended at `step`; returns when no group has arrived for `_QUIET_S`.

        Ends at once when `is_stopped`. The last version is evaluated meanwhile.
        """
        self._announce(step)
        self._check_all(step, is_stopped)
        began = announced_at = quiet_since = self._clock.now()
        while not is_stopped():
            self._checks.finish(step=step)
            now, evaluating = self._clock.now(), self._checks.evaluate(idle=True, finished=True)
            is_quiet = now - quiet_since >= _QUIET_S or now - began >= _LONGEST_S
            if is_quiet and not (evaluating and now - began < _LONGEST_EVALUATION_S):
                return
            self._inbox.read(0.2, step=step, finished=True)
            if now - announced_at >= _REPEAT_S:
                announced_at = now
                self._announce(step)
            if self._checks.has_unsettled and self._checks.settle_next(step=step):
                self._announce(step)
                quiet_since = now

    def _check_all(self, step: int, is_stopped: Callable[[], bool]) -> None:
        """Check the stored groups and issue their receipts; messages are answered in between."""
        began = self._clock.now()
        while not is_stopped() and self._clock.now() - began < _LONGEST_CHECKS_S:
            self._inbox.read(0.0, step=step, finished=True)
            if not self._checks.settle_next(step=step):
                return
            self._announce(step)

    def _announce(self, step: int) -> None:
        """Send a finished ledger head, always: a peer whose last head is unfinished would keep waiting."""
        self._sender.send_ledger_head(step=step, finished=True)
