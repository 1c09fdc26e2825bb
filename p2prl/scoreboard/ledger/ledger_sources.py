"""Port between a board and its ledger: the API does not know whether a journal or a swarm is behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from p2prl.errors import P2PRLError
from p2prl.scoreboard.ledger.known_run import KnownRun
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.signed_head import Witness


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Everything a page shows, at one point in time. One record, because a page must not mix two
    moments."""

    run: KnownRun | None
    """None while the board has not received the run manifest."""
    board: BoardState | None
    """None when `run` is, and for a ledger followed without totals."""
    policy_version: int | None
    """Newest version known to the source."""
    learner_step: int | None
    """Updates known to the source; the ledger may lag behind."""
    connected_peers: dict[str, int] | None
    """Peers the board is connected to, by role; None for a source without a network."""
    signed_height: int | None
    """Highest height a signed head was compared with; None when there was none."""
    signed_head: bytes
    """That head's envelope, or nothing."""
    finished: bool
    """Whether the learner has ended the run."""
    learner_offline_since: float | None
    """When the learner was last heard of, seconds since 1970, if it is offline now; None while it is not."""
    incident: str | None
    """Proof that the ledger cannot be trusted, in one sentence."""
    join_link: str
    """Empty when none was published."""
    total_steps: int | None
    """Planned updates; None when the run has no end or the source does not know it."""
    unproven_entries: int = 0
    """Entries stored that no signed head proves yet; they are not counted."""
    evaluations: tuple[Mapping[str, Any], ...] = ()
    """Lines of the learner's `evaluations.jsonl`, oldest first. Only a board beside its learner has them: they are not
    signed, so no peer passes them on."""


class LedgerSource(Protocol):
    """A ledger that grows. Its methods may be called from several threads."""

    def snapshot(self) -> Snapshot:
        """The newest state."""
        ...

    def entries(self, from_height: int, limit: int) -> list[bytes]:
        """Consecutive entries from a height on, as bytes."""
        ...

    def witnesses(self) -> tuple[Witness, ...]:
        """Countersignatures of heads that the ledger agrees with, one of each author."""
        ...

    def failure(self) -> P2PRLError | None:
        """The error that ended this source for good, if there was one."""
        ...
