"""Schedule of the statements a machine sends about itself and its owner: on joining a run, and again now and then.

They are sent again because a learner keeps some of them in memory only until the machine has checked work, and
because any node on the way may drop one (`statement_quota`). Pure.
"""

from __future__ import annotations

import math

from p2prl.protocol.membership_statements import OwnersStatement

PERIOD_S = 600.0
"""How often they are sent: four statements of 300 bytes in ten minutes cost nothing, and a lost one delays credit to
the owner's row, not the credit itself."""

_LEARNER_S = 60.0
"""A link with the learner makes them due at once, but not more often than this: links may come and go."""


class OwnStatements:
    """When to send which statements."""

    def __init__(self, statements: tuple[OwnersStatement, ...]) -> None:
        self._statements = statements
        self._sent_at = -math.inf
        self._due_at = -math.inf if statements else math.inf
        self._had_learner = False

    def next_deadline(self) -> float:
        """When the next sending is due; −∞ for the first, ∞ for never."""
        return self._due_at

    def take_due(self, now: float, *, linked: bool, learner_linked: bool) -> tuple[OwnersStatement, ...]:
        """The statements to send now; none before they are due or while no peer is `linked`.

        Call it every few seconds: a new link with the learner makes them due.
        """
        if learner_linked and not self._had_learner and self._statements:
            self._due_at = min(self._due_at, self._sent_at + _LEARNER_S)
        self._had_learner = learner_linked
        if now < self._due_at or not linked:
            return ()
        self._sent_at, self._due_at = now, now + PERIOD_S
        return self._statements
