"""Recount of a whole ledger from its first entry, checked against the learner's signed head."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.scoreboard.documents.api_schema import ContributorDocument, Totals, ValidatorDocument
from p2prl.scoreboard.documents.api_views import run_document
from p2prl.scoreboard.documents.leaderboard_view import leaderboard_document
from p2prl.scoreboard.ledger.ledger_fold import LedgerFold
from p2prl.scoreboard.ledger.ledger_sources import KnownRun, Snapshot


@dataclass(frozen=True, kw_only=True, slots=True)
class Recount:
    """The totals of a whole ledger."""

    run_id: str
    """Digest of the run manifest's envelope, hex; compare it with the join link's."""
    name: str
    height: int
    root: str
    """Digest of the newest entry, hex; compare it with a board's head."""
    signed_height: int | None
    """Height of the learner's signed head when there is one; it matched the chain."""
    totals: Totals
    people: list[ContributorDocument]
    validators: list[ValidatorDocument]


def recount(run: KnownRun, entries: Iterable[bytes], *, head: bytes = b"") -> Recount:
    """Follow a chain from its first entry and total it; `head` is the envelope of a signed head to check it against.

    Raises `IntegrityError` naming the first entry that breaks the chain or that the signed head contradicts.
    """
    fold = run.new_fold()
    signed_head = _SignedHead(run, head)
    for raw in entries:
        try:
            fold.follow(raw)
        except (IntegrityError, RemoteProtocolError) as error:
            raise IntegrityError(f"entry {fold.height} is broken: {error}") from error
        signed_head.compare(fold)
    signed_head.finish(fold)
    state = fold.state()
    snapshot = Snapshot(
        run=run,
        board=state,
        policy_version=None,
        learner_step=None,
        connected_peers=None,
        signed_height=signed_head.height,
        signed_head=head,
        finished=False,
        learner_offline_since=None,
        incident=None,
        join_link="",
        total_steps=None,
    )
    everyone = max(len(state.people), len(state.validators), 1)
    return Recount(
        run_id=run.run.hex(),
        name=run.manifest.name,
        height=fold.height,
        root=fold.head.hex(),
        signed_height=signed_head.height,
        totals=run_document(snapshot).totals,
        people=leaderboard_document(snapshot, by="people", limit=everyone).people,
        validators=leaderboard_document(snapshot, by="validators", limit=everyone).validators,
    )


class _SignedHead:
    """Checks a chain against the learner's signed head."""

    def __init__(self, run: KnownRun, raw: bytes) -> None:
        self.height: int | None = None
        self._head = b""
        if raw:
            opened = open_envelope(raw, now=None)
            body = body_of(opened, LedgerHead)
            if opened.author != run.manifest.learner or opened.run != run.run:
                raise RemoteProtocolError("the dump's signed head is not signed by this run's learner")
            self.height, self._head = body.height, body.head

    def compare(self, fold: LedgerFold) -> None:
        """The chain has reached `fold.height`."""
        if fold.height == self.height and fold.head != self._head:
            raise IntegrityError(f"entry {fold.height - 1} differs from the one the learner signed")

    def finish(self, fold: LedgerFold) -> None:
        """The chain has ended."""
        if self.height is not None and fold.height < self.height:
            raise IntegrityError(f"the ledger ends at entry {fold.height}, but the learner signed {self.height}")
