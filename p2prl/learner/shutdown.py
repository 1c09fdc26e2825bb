"""End of a run: announce the final ledger head until the swarm is quiet, and issue receipts for late groups."""

from __future__ import annotations

from collections.abc import Callable

from p2prl.clock import Clock
from p2prl.learner.intake.group_checks import GroupChecks
from p2prl.learner.intake.inbox import Inbox
from p2prl.learner.journal.groups import GroupTable
from p2prl.learner.signing_sender import SigningSender
from p2prl.plain_text import counted
from p2prl.protocol.kinds import Role

_QUIET_S = 6.0
"""How long the learner stays after the last group arrived."""

_REPEAT_S = 1.0
"""Period of further announcements, for peers that have just reconnected."""

_LONGEST_S = 15.0
"""Longest stay after the checks of the groups that were stored, even if groups keep arriving."""

_LONGEST_CHECKS_S = 300.0
"""Longest time for those checks, and for the groups that arrive meanwhile. What is left stays in the journal for a
learner that is started again: a swarm that outran training for hours can have left hours of replays."""

_RETURN_S = 60.0
"""How long after its start the learner waits for volunteers that have not come back. A learner that resumes can end the
run at once, with the groups of its journal. Volunteers would miss that and sample on: libp2p dials an address that
failed n times only after 5 + n² seconds."""

_RECENT_S = 600.0
"""A volunteer whose last group is older than this at the start is not waited for."""

_LONGEST_EVALUATION_S = 120.0
"""Longest stay for the evaluation of the last version, which says what the run has reached."""


class Shutdown:
    """Keeps a finished learner reachable until volunteers are back and the groups in flight have their receipts."""

    def __init__(
        self,
        inbox: Inbox,
        checks: GroupChecks,
        sender: SigningSender,
        groups: GroupTable,
        clock: Clock,
        on_notice: Callable[[str], None],
    ) -> None:
        self._inbox = inbox
        self._checks = checks
        self._sender = sender
        self._clock = clock
        self._on_notice = on_notice
        self._groups = groups
        self._started_at = clock.now()
        self._expected = groups.peers_since(self._started_at - _RECENT_S)
        self._most_linked = 0
        """Most volunteers linked at once since the end."""

    def announce_end(self, *, step: int, is_stopped: Callable[[], bool]) -> None:
        """Tell everyone that the run has ended at `step`.

        Returns when no group has arrived for `_QUIET_S` and no volunteer is missing, or at once when `is_stopped`. The
        last version is evaluated meanwhile. Groups that are left without a receipt are told of.
        """
        self._announce(step)
        in_time = self._check_all(step, is_stopped)
        began = announced_at = quiet_since = self._clock.now()
        while not is_stopped():
            self._checks.finish(step=step)
            now, evaluating = self._clock.now(), self._checks.evaluate(idle=True, finished=True)
            if self._are_volunteers_missing(now):
                began = quiet_since = now
            is_quiet = now - quiet_since >= _QUIET_S or now - began >= _LONGEST_S
            if is_quiet and not (evaluating and now - began < _LONGEST_EVALUATION_S):
                break
            self._inbox.read(0.2, step=step, finished=True)
            if now - announced_at >= _REPEAT_S:
                announced_at = now
                self._announce(step)
            if self._checks.unsettled_groups and self._checks.settle_next(step=step):
                self._announce(step)
                quiet_since = now
        # Groups that arrived faster than they were settled must not stay without a receipt. When there was no time for
        # all, these may be a few of the last seconds, from volunteers that went on delivering, or hours of replays.
        self._check_all(step, is_stopped, read=False, longest_s=_LONGEST_CHECKS_S if in_time else _LONGEST_S)
        if (left := self._checks.unsettled_groups) and not is_stopped():
            self._on_notice(
                f"{counted(left, 'delivered group')} could not be checked in time. The same command checks them, and"
                " gives their volunteers credit, whenever it runs again."
            )

    def _are_volunteers_missing(self, now: float) -> bool:
        """Whether some that were at work before this start may still come back: until as many were linked at once, or
        each of them has delivered a group since, over whichever peers."""
        status = self._sender.network.status
        linked = 0 if status is None else dict(status.peers).get(Role.VOLUNTEER.name.lower(), 0)
        self._most_linked = max(self._most_linked, linked)
        if now - self._started_at >= _RETURN_S or self._most_linked >= len(self._expected):
            return False
        return not self._expected <= self._groups.peers_since(self._started_at)

    def _check_all(
        self,
        step: int,
        is_stopped: Callable[[], bool],
        *,
        read: bool = True,
        longest_s: float = _LONGEST_CHECKS_S,
    ) -> bool:
        """Check the stored groups and issue their receipts; with `read`, messages are answered in between.

        False when there was no time for all.
        """
        began = self._clock.now()
        while not is_stopped() and self._clock.now() - began < longest_s:
            if read:
                self._inbox.read(0.0, step=step, finished=True)
            if not self._checks.settle_next(step=step):
                return True
            self._announce(step)
        return False

    def _announce(self, step: int) -> None:
        """Send a finished ledger head, always: a peer whose last head is unfinished would keep waiting."""
        self._sender.send_ledger_head(step=step, finished=True)
