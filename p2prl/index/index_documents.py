"""Documents of an index's HTTP API, version 1. Within v1 fields are only added; none says where a listing came from."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from p2prl.index.listing_table import Row
from p2prl.protocol.listing import run_id
from p2prl.time_text import time_text

NO_ENDORSEMENT = (
    "A listing is a claim of the run's owner. This index checked that the run's own learner signed it and that its "
    "facts are those of the run's manifest; it endorses no run, and need and volunteers are the owner's word alone."
)
"""Said wherever listings are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedRunDocument:
    """A listed run. It has as many fields as a chooser needs, because all of them are compared at once."""

    run: str
    """The run's digest, as in its join link."""
    owner: str
    """Peer id of its learner's key."""
    name: str
    goal: str
    content: str
    """Nature of its prompts, and of what may be generated."""
    base_model: str
    parameters: int
    memory_bytes: int
    disk_bytes: int
    """At least."""
    group_bytes: int
    """Most bytes uploaded for one group."""
    state: str
    """`running`, `paused` or `ended`."""
    volunteers: int
    missing: int | None
    """Further volunteers it could use by its forecast; below zero: as many are too many; null without a forecast."""
    made: str | None
    """When the run was made."""
    listed_since: str | None
    """Since when it has been listed here without a gap."""
    expires: str | None
    join_link: str
    crowd: int
    """Listings that share the network it was sent from."""
    board: str
    """Web address of its board; empty where it names none."""
    record_base64: str
    """The signed listing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunsDocument:
    """All listings of an index."""

    runs: list[ListedRunDocument]
    note: str = NO_ENDORSEMENT


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedDocument:
    """Answer to a listing that was taken."""

    run: str
    expires: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexHealthDocument:
    """State of an index."""

    status: str
    """`ok`."""
    runs: int
    mirrors: dict[str, str]
    """Mirrored indexes, and `ok` or why the newest look at them failed."""
    ledgers: dict[str, str]
    """By run: `ok`, or why its ledger is not whole here."""


def runs_document(rows: tuple[Row, ...]) -> RunsDocument:
    """The rows as a document."""
    return RunsDocument(runs=[listed_run(row) for row in rows])


def listed_run(row: Row) -> ListedRunDocument:
    """A row as a document."""
    opened, listing = row.kept.opened, row.kept.opened.listing
    return ListedRunDocument(
        run=run_id(opened.run),
        owner=opened.owner,
        name=listing.name,
        goal=listing.goal,
        content=listing.content,
        base_model=listing.base_model,
        parameters=listing.parameters,
        memory_bytes=listing.memory_bytes,
        disk_bytes=listing.disk_bytes,
        group_bytes=listing.group_bytes,
        state=listing.state,
        volunteers=listing.volunteers,
        missing=listing.missing,
        made=time_text(listing.since_ms),
        listed_since=time_text(row.kept.first_seen * 1000),
        expires=time_text(listing.expires_ms),
        join_link=listing.link,
        crowd=row.crowd,
        board=listing.board,
        record_base64=base64.b64encode(opened.raw).decode(),
    )
