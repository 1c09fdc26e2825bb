"""Recount of a whole ledger from its first entry, checked against the learner's signed head."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.scoreboard.documents.api_schema import ContributorDocument, Totals, ValidatorDocument
from p2prl.scoreboard.documents.api_views import run_document
from p2prl.scoreboard.documents.leaderboard_view import leaderboard_document
from p2prl.scoreboard.ledger.ledger_sources import KnownRun, Snapshot
from p2prl.scoreboard.ledger.signed_head import open_signed_head


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
    """Height of the learner's signed head when there is one; it matched the chain. What is above it, or everything
    where there is none, may be incomplete or a stranger's."""
    finished: bool
    """Whether the signed head says that the run has ended: nothing can be missing after it."""
    totals: Totals
    people: list[ContributorDocument]
    validators: list[ValidatorDocument]

    @property
    def unsigned(self) -> int:
        """Entries that the learner's signed head does not cover."""
        return self.height - (self.signed_height or 0)

    @property
    def is_whole(self) -> bool:
        """Whether the learner has signed that these are all entries up to the head, and there are no others."""
        return self.signed_height is not None and self.unsigned == 0


def recount(run: KnownRun, entries: Iterable[bytes], *, head: bytes = b"") -> Recount:
    """Follow a chain from its first entry and total it; `head` is the envelope of a signed head to check it against.

    Raises `IntegrityError` naming the first entry that breaks the chain or that the signed head contradicts.
    """
    fold = run.new_fold()
    signed = open_signed_head(run, head) if head else None
    for raw in entries:
        try:
            fold.follow(raw)
        except (IntegrityError, RemoteProtocolError) as error:
            raise IntegrityError(f"entry {fold.height} is broken: {error}") from error
        if signed is not None and (fault := signed.contradiction(fold.height, fold.head)):
            raise IntegrityError(fault)
    if signed is not None and (fault := signed.missing(fold.height)):
        raise IntegrityError(fault)
    signed_height = None if signed is None else signed.height
    state = fold.state()
    snapshot = Snapshot(
        run=run,
        board=state,
        policy_version=None,
        learner_step=None,
        connected_peers=None,
        signed_height=signed_height,
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
        signed_height=signed_height,
        finished=signed is not None and signed.finished,
        totals=run_document(snapshot).totals,
        people=leaderboard_document(snapshot, by="people", limit=everyone).people,
        validators=leaderboard_document(snapshot, by="validators", limit=everyone).validators,
    )
