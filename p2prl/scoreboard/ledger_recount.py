"""Recount of a whole ledger from its first entry, checked against the learner's signed head."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.scoreboard.documents.api_schema import ContributorDocument, Totals, ValidatorDocument
from p2prl.scoreboard.documents.api_views import run_document
from p2prl.scoreboard.documents.ranked_leaderboard import leaderboard_document
from p2prl.scoreboard.ledger.known_run import KnownRun
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.ledger.signed_head import Witness, open_signed_head


@dataclass(frozen=True, kw_only=True, slots=True)
class Countersigned:
    """How many have followed the same ledger and said so, one for each owner."""

    validators: int = 0
    """Validators of standing, as of their newest check in this ledger, that countersigned a head of these entries."""
    whole: int = 0
    """Those of them whose head covers everything that the learner has signed here."""
    height: int = 0
    """The most entries that one of them covers."""
    others: int = 0
    """Keys without standing; they are free, so this number proves nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recount:
    """The totals of a whole ledger."""

    run_id: str
    """Digest of the run manifest's envelope, hex; compare it with the join link's."""
    name: str
    signer: bytes
    """Public key of whose receipts these are: the run's learner, or a validator with a ledger of its own."""
    is_validators: bool
    """Whether it is a validator's own ledger."""
    height: int
    root: str
    """Digest of the newest entry, hex; compare it with a board's head."""
    signed_height: int | None
    """Height of the learner's signed head when there is one; it matched the chain. What is above it, or everything
    where there is none, may be incomplete or a stranger's."""
    finished: bool
    """Whether the signed head says that the run has ended: nothing can be missing after it."""
    countersigned: Countersigned
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


def recount(
    run: KnownRun, entries: Iterable[bytes], *, head: bytes = b"", witnesses: Iterable[Witness] = ()
) -> Recount:
    """Follow a chain from its first entry and total it; `head` is the envelope of a signed head to check it against,
    `witnesses` are countersignatures.

    Raises `IntegrityError` naming the first entry that breaks the chain, or that the signed head or one in a
    countersignature contradicts.
    """
    fold = run.new_fold()
    signed = open_signed_head(run, head) if head else None
    witnesses = tuple(witnesses)
    countersigned = {witness.head.height: witness.head for witness in witnesses}
    for raw in entries:
        try:
            fold.follow(raw)
        except (IntegrityError, RemoteProtocolError) as error:
            raise IntegrityError(f"entry {fold.height} is broken: {error}") from error
        if signed is not None and (fault := signed.contradiction(fold.height, fold.head)):
            raise IntegrityError(fault)
        other = countersigned.get(fold.height)
        if other is not None and other.contradiction(fold.height, fold.head):
            raise IntegrityError(
                f"the learner signed two different histories of {fold.height} ledger entries: these, and one that a "
                f"validator countersigned; they part at entry {fold.height - 1} or before it",
                remedy="Keep both dumps: the two signed heads prove it to anybody.",
            )
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
        signer=run.ledger_key,
        is_validators=bool(run.validator),
        height=fold.height,
        root=fold.head.hex(),
        signed_height=signed_height,
        finished=signed is not None and signed.finished,
        countersigned=_countersigned(state, signed_height or 0, witnesses),
        totals=run_document(snapshot).totals,
        people=leaderboard_document(snapshot, by="people", limit=everyone).people,
        validators=leaderboard_document(snapshot, by="validators", limit=everyone).validators,
    )


def _countersigned(board: BoardState, signed_height: int, witnesses: Iterable[Witness]) -> Countersigned:
    owners = {machine: owner for owner, machines in board.validator_machines.items() for machine in machines}
    covered: dict[bytes, int] = {}
    others: set[bytes] = set()
    for witness in witnesses:
        owner = owners.get(witness.author)
        row = None if owner is None else board.validator_machines[owner].get(witness.author)
        if owner is None or row is None or not row.standing.is_known:
            others.add(witness.author)
        elif witness.head.height <= board.height:
            covered[owner] = max(covered.get(owner, 0), witness.head.height)
    return Countersigned(
        validators=len(covered),
        whole=sum(height >= signed_height for height in covered.values()),
        height=max(covered.values(), default=0),
        others=len(others),
    )
