"""Port between a board and its ledger: the API does not know whether a journal or a swarm is behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from p2prl.errors import P2PRLError
from p2prl.scoreboard.ledger.known_run import KnownRun
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.signed_head import Witness


@dataclass(frozen=True, kw_only=True, slots=True)
class PaceOfRun:
    """Share of the newest updates' time in which training had groups, and what was foreseen."""

    realised: float
    predicted: float | None
    """For the next updates; None where too few groups came."""
    low: float | None
    high: float | None
    error: float | None
    """The newest judged forecast less what came; None before there is one."""

    @classmethod
    def of_status(cls, status: Mapping[str, Any]) -> PaceOfRun | None:
        """As a learner's `status.json` has it; None before it has measured enough updates."""

        def figure(key: str) -> float | None:
            value = status.get(f"plan/{key}")
            return float(value) if isinstance(value, int | float) and math.isfinite(value) else None

        if (realised := figure("realised")) is None:
            return None
        predicted, low, high = (figure(key) for key in ("predicted_utilisation", "low", "high"))
        return cls(realised=realised, predicted=predicted, low=low, high=high, error=figure("error"))


@dataclass(frozen=True, kw_only=True, slots=True)
class RanksOfRun:
    """Processes that share every update of a learner."""

    plan: str
    """`1` for one process."""
    ranks: int
    hosts: int

    @classmethod
    def of_status(cls, status: Mapping[str, Any]) -> RanksOfRun | None:
        """As a learner's `status.json` has it; None where it has none."""
        plan, ranks, hosts = status.get("plan"), status.get("ranks"), status.get("hosts")
        if isinstance(plan, str) and isinstance(ranks, int) and isinstance(hosts, int):
            return cls(plan=plan, ranks=ranks, hosts=hosts)
        return None


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
    pace: PaceOfRun | None = None
    """As the learner has measured it; None where this board does not read its folder."""
    ranks: RanksOfRun | None = None
    """As the learner has reported it; None where this board does not read its folder."""


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
