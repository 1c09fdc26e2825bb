"""Targets of listings and of what indexes answer, up to the choice of a run that is made of them."""

from __future__ import annotations

from collections.abc import Iterator

from p2prl.errors import ConfigError, StaleWorkError, UnreachableError
from p2prl.index.index_client import IndexClient
from p2prl.index.listing_table import ListingRefusedError, ListingTable, ManifestWantedError
from p2prl.index.run_choice import Machine, Offer, Wishes, by_need, dialed_link, left_out
from p2prl.index.run_facts import checked_manifest
from p2prl.index.submission import parse_submission, submission
from p2prl.protocol.listing import MAX_LISTING_BYTES, SignedListing, open_listing
from p2prl.protocol.wire_codec import decode
from p2prl.swarm.peers.dial_rules import DialRules
from p2prl.swarm.peers.subnets import Subnet
from p2prl_lab.testing.fuzz import mutations
from p2prl_lab.testing.fuzz.target import PROTOCOL_ERRORS, Target
from p2prl_lab.testing.hostile_listings import hostile_listings, signed_body
from p2prl_lab.testing.index_documents import runs_json
from p2prl_lab.testing.ledger_boards import AnsweringWeb, entries_json, head_json
from p2prl_lab.testing.listed_runs import NOW, ListedRun, many_runs
from p2prl_lab.testing.sample_ledgers import sample_run

_RUN = ListedRun()
_STALE = (*PROTOCOL_ERRORS, StaleWorkError)


class _Answered(IndexClient):
    """A client whose index answers these bytes."""

    def __init__(self, body: bytes) -> None:
        super().__init__("http://index.test")
        self._body = body

    def _get(self, path: str, most: int) -> bytes:
        del path, most
        return self._body

    def _post(self, body: bytes) -> tuple[int, bytes]:
        del body
        return 400, self._body


def index_targets() -> Iterator[Target]:
    """All of them."""
    runs = many_runs(3)
    body = decode(_RUN.signed(), SignedListing, limit_bytes=MAX_LISTING_BYTES).body
    hostile = [each.listing for each in hostile_listings(_RUN, now=NOW).values()]
    yield Target(
        name="listing: as it comes",
        decode=lambda data: open_listing(data, now=NOW),
        examples=(_RUN.signed(), *hostile),
        allowed=_STALE,
        share=2.0,
    )
    yield Target(
        name="listing: behind its learner's signature",
        decode=lambda data: _chosen(signed_body(_RUN.learner, data)),
        examples=(body,),
        changes=(mutations.of_bytes, mutations.of_msgpack),
        allowed=_STALE,
        share=2.0,
    )
    yield Target(
        name="listing: to an index",
        decode=_offered,
        examples=(submission(_RUN.signed(), _RUN.manifest_raw), submission(_RUN.signed(), b"")),
        changes=(mutations.of_bytes, mutations.of_msgpack),
    )
    yield Target(
        name="index: runs",
        decode=_listed,
        examples=(runs_json(*[run.signed() for run in runs]), runs_json()),
        changes=(mutations.of_bytes, mutations.of_json),
        allowed=(UnreachableError,),
    )
    yield Target(
        name="index: refusal",
        decode=_refused,
        examples=(b'{"error": "too long", "remedy": "send less"}', b"{}"),
        changes=(mutations.of_bytes, mutations.of_json),
    )
    writer = sample_run(0, steps=1)
    yield Target(
        name="board: head",
        decode=lambda data: AnsweringWeb(lambda _: data).board.signed_head(),
        examples=(head_json(writer.signed_head()), head_json(b"")),
        changes=(mutations.of_bytes, mutations.of_json),
        allowed=(UnreachableError,),
    )
    yield Target(
        name="board: entries",
        decode=lambda data: AnsweringWeb(lambda _: data).board.entries(0, 64),
        examples=(entries_json(writer.entries), entries_json([])),
        changes=(mutations.of_bytes, mutations.of_json),
        allowed=(UnreachableError,),
    )


def _chosen(raw: bytes) -> object:
    """What a volunteer makes of a listing."""
    opened, machine = open_listing(raw, now=NOW), Machine(memory_bytes=1 << 33, disk_bytes=1 << 40, dials=DialRules())
    checked_manifest(opened, _RUN.manifest_raw)
    return by_need([Offer(opened, 3, left_out(opened, machine, Wishes()))], Wishes()), dialed_link(opened, machine)


def _offered(data: bytes) -> object:
    sent, table = parse_submission(data), ListingTable()
    try:
        table.offer(sent.listing, sent.manifest, source=Subnet("203.0.113.0/24"), now=NOW)
    except (ListingRefusedError, ManifestWantedError):
        return None
    return table.rows(NOW)


def _listed(data: bytes) -> object:
    found = _Answered(data).listings(now=NOW)
    return by_need([Offer(each.opened, each.crowd) for each in found], Wishes())


def _refused(data: bytes) -> str:
    try:
        _Answered(data).submit(_RUN.signed(), _RUN.manifest_raw)
    except ConfigError as error:
        return str(error)
    raise AssertionError("a refusal was taken for an answer")
