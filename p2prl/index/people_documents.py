"""Documents of people over runs, version 1. Within v1 fields are only added. A person is a key: none says more.

No document holds a machine, an address or a name that anybody chose for a person.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from p2prl.errors import ConfigError, IdentityError
from p2prl.index.people_totals import NOTHING, GivenTo, PeopleTotals
from p2prl.plain_text import counted
from p2prl.protocol.identity import PeerId, peer_id_of, public_key_of
from p2prl.protocol.listing import run_id
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.documents.page_cursor import cursor_of, place_of
from p2prl.scoreboard.documents.ranked_leaderboard import key_matches
from p2prl.time_text import time_text

MAX_RUNS = 256
"""Runs of one person in one document, of each kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonRowDocument:
    """A person's sums over the runs that count."""

    rank: int | None
    """By credit; null for one without credit in these runs."""
    id: str
    """Peer id of the owner's key."""
    handle: str
    """Words made of that key."""
    credit: float
    """PetaFLOP of checked work: tokens, times two, times the parameters of each run's model."""
    groups: int
    """Credited groups."""
    tokens: int
    """Completion tokens in them."""
    rechecked_tokens: int
    """Tokens of others that it replayed as a validator; part of the credit."""
    runs: int
    first_at: str | None
    """When a learner signed its first receipt; null for one who only validated."""
    last_at: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PeopleDocument:
    """A page of people, most credit first."""

    total: int
    """People with credit; with a search those that match."""
    people: list[PersonRowDocument]
    next_cursor: str | None
    counted_owners: list[str]
    """Peer ids of those whose runs count."""
    counted_runs: int
    """Runs of theirs whose ledgers are here."""
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonRunDocument:
    """A person's part in one run."""

    run: str
    """The run's digest, as in its join link."""
    name: str
    owner: str
    """Peer id of its learner's key, which signed for all of this."""
    owner_name: str
    """Words made of that key."""
    credit: float
    groups: int
    tokens: int
    rechecked_tokens: int
    first_at: str | None
    last_at: str | None
    finished: bool
    incident: str
    """Why nothing of this run counts, where its learner signed two histories; else empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PersonDocument:
    """A person over runs."""

    person: PersonRowDocument
    runs: list[PersonRunDocument]
    """Those that count."""
    other_runs: list[PersonRunDocument]
    """The word of other owners, or of a run that contradicts itself; in no sum."""
    note: str


def note_of(totals: PeopleTotals) -> str:
    """What counts here, and why."""
    named = "nobody's"
    if totals.owners:
        named = f"those of {counted(len(totals.owners), 'owner')} named by this index's operator"
    return (
        "A run's owner signs its ledger, and so could credit anybody with anything. "
        f"The runs that count in sums and ranks here are {named}; what other owners say stands apart."
    )


def people_document(totals: PeopleTotals, *, limit: int, cursor: str | None = None, query: str = "") -> PeopleDocument:
    """A page of people. Raises `ConfigError` for a cursor that this API did not issue."""
    words = query.lower().split()
    ranked = [key for key in totals.ranked if key_matches(key, words)] if words else totals.ranked
    start = 0 if not cursor else bisect_right(ranked, _place(cursor), key=lambda key: (-totals.people[key].weight, key))
    page = ranked[start : start + limit]
    last = page[-1] if page and start + limit < len(ranked) else None
    return PeopleDocument(
        total=len(ranked),
        people=[person_row(totals, key) for key in page],
        next_cursor=None if last is None else cursor_of((-totals.people[last].weight, peer_id_of(last), last)),
        counted_owners=sorted(totals.owners),
        counted_runs=sum(run.counts_for(totals.owners) for run in totals.runs),
        note=note_of(totals),
    )


def person_document(totals: PeopleTotals, person_id: str) -> PersonDocument | None:
    """A person by its peer id; None for one whom no ledger here knows."""
    try:
        key = public_key_of(PeerId(person_id))
    except IdentityError:
        return None
    runs, others = totals.parts(key)
    if not runs and not others:
        return None
    return PersonDocument(
        person=person_row(totals, key),
        runs=[_run(part) for part in runs[:MAX_RUNS]],
        other_runs=[_run(part) for part in others[:MAX_RUNS]],
        note=note_of(totals),
    )


def person_row(totals: PeopleTotals, key: bytes) -> PersonRowDocument:
    """A person's sums."""
    person = totals.people.get(key, NOTHING)
    return PersonRowDocument(
        rank=totals.ranks.get(key),
        id=peer_id_of(key),
        handle=display_name(key),
        credit=person.credit,
        groups=person.groups,
        tokens=person.tokens,
        rechecked_tokens=person.rechecked_tokens,
        runs=person.runs,
        first_at=_time(person.first_ms),
        last_at=_time(person.last_ms),
    )


def _run(part: GivenTo) -> PersonRunDocument:
    run, given = part
    return PersonRunDocument(
        run=run_id(run.run),
        name=run.name,
        owner=run.owner,
        owner_name=display_name(public_key_of(run.owner)),
        credit=run.credit(given),
        groups=given.groups,
        tokens=given.tokens,
        rechecked_tokens=given.rechecked_tokens,
        first_at=_time(given.first_ms),
        last_at=_time(given.last_ms),
        finished=run.is_finished,
        incident=run.incident,
    )


def _place(cursor: str) -> tuple[int, bytes]:
    weight, peer_id = place_of(cursor)
    try:
        return weight, public_key_of(PeerId(peer_id))
    except IdentityError as error:
        raise ConfigError(
            "the cursor was not issued by this API", remedy="Use next_cursor of the previous page."
        ) from error


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else time_text(at_ms)
