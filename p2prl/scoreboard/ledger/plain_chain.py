"""A run's chain of entries followed without totals: for a mirror, whose memory must not grow with the ledger."""

from __future__ import annotations

from typing import Protocol

from p2prl.protocol import ledger_chain
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened
from p2prl.protocol.ledger_messages import VerdictChecks
from p2prl.protocol.standing import StandingTable
from p2prl.scoreboard.ledger.ledger_fold import BoardState

_VALIDATORS = 4_096
"""Validators whose standing is remembered."""


class Chain(Protocol):
    """A chain that is followed entry by entry."""

    @property
    def height(self) -> int:
        """Entries followed."""
        ...

    @property
    def head(self) -> Digest:
        """Digest of the newest entry."""
        ...

    def follow(self, raw: bytes) -> Opened:
        """Check that `raw` is the next entry; raises as `LedgerFold.follow`."""
        ...

    def knows(self, validator: bytes) -> bool:
        """Whether a validator has standing by the checks of its verdicts in these entries."""
        ...

    def state(self) -> BoardState | None:
        """The totals so far; None for a chain without them."""
        ...


class PlainChain:
    """Checks every link and signature, and remembers the newest digest and which validators have standing."""

    def __init__(self, *, run: bytes, learner: bytes) -> None:
        self._run = run
        self._learner = learner
        self.height = 0
        self.head = ledger_chain.GENESIS
        self._standings = StandingTable(_VALIDATORS, bytes)

    def follow(self, raw: bytes) -> Opened:
        """See `Chain`."""
        opened, self.head = ledger_chain.follow(
            raw, height=self.height, head=self.head, run=self._run, learner=self._learner
        )
        self.height += 1
        if isinstance(opened.body, VerdictChecks):
            self._standings.note_checks(opened.body.checks, opened.sent_ms / 1000)
        return opened

    def knows(self, validator: bytes) -> bool:
        """See `Chain`."""
        return self._standings.of(validator).is_known

    def state(self) -> None:
        """No totals."""
