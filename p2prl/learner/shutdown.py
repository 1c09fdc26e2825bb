"""End of a run: announce the final ledger head until the swarm is quiet, and issue receipts for late groups."""

from __future__ import annotations

from p2prl.clock import Clock
from p2prl.learner.intake.group_checks import GroupChecks
from p2prl.learner.intake.inbox import Inbox
from p2prl.learner.signing_sender import SigningSender

_QUIET_S = 6.0
"""How long the learner stays after the last group arrived: twice the redial time of a peer that lost its link."""

_REPEAT_S = 1.0
"""Period of further announcements, for peers that have just reconnected."""

_LONGEST_S = 15.0
"""Longest stay, even if groups keep arriving."""


class Shutdown:
    """Keeps a finished learner reachable until the groups in flight have their receipts."""

    def __init__(self, inbox: Inbox, checks: GroupChecks, sender: SigningSender, clock: Clock) -> None:
        self._inbox = inbox
        self._checks = checks
        self._sender = sender
        self._clock = clock

    def announce_end(self, *, step: int) -> None:
        """Tell everyone that the run has ended at `step`; returns when no group has arrived for `_QUIET_S`."""
        self._announce(step)
        began = announced_at = quiet_since = self._clock.now()
        while (now := self._clock.now()) - quiet_since < _QUIET_S and now - began < _LONGEST_S:
            self._inbox.read(0.2, step=step, finished=True)
            if now - announced_at >= _REPEAT_S:
                announced_at = now
                self._announce(step)
            if self._checks.has_unsettled:
                self._check_all(step)
                quiet_since = now

    def _check_all(self, step: int) -> None:
        """Check every stored group and issue its receipt."""
        while self._checks.settle_next(step=step):
            self._announce(step)

    def _announce(self, step: int) -> None:
        """Send a finished ledger head, always: a peer whose last head is unfinished would keep waiting."""
        self._sender.send_ledger_head(step=step, finished=True)
