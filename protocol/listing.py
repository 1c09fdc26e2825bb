"""Listings: signed records by which a run's learner says in public that the run exists and what it needs.

A listing travels over HTTP, between learners, indexes and volunteers, and never over links of a swarm, so it is no
envelope and no part of the wire version. It names its run by a join link alone. The signer must be the run's learner,
which `check_source` decides from the run's manifest: the link has its digest, so nobody can list the run of another.
A listing is a claim of its learner and no endorsement by anybody.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from p2prl.errors import ConfigError, RemoteProtocolError, StaleWorkError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.envelope import body_of, envelope_digest, open_envelope
from p2prl.protocol.identity import SIGNATURE_BYTES, Identity, PeerId, peer_id_of, verify_raw
from p2prl.protocol.join_link import JoinLink, parse_link
from p2prl.protocol.listing_life import MAX_LIFE_S
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.web_address import web_address
from p2prl.protocol.wire_codec import Wire, decode, encode

MAX_LISTING_BYTES = 4_096
"""One signed listing: its three texts have at most 600 bytes each, its link 1,200. With a thousand of them an index
answers in a few megabytes."""

MAX_MANIFEST_BYTES = 64 * 1024
"""Manifest of a listed run: that of `p2prl demo` has 839 bytes, one of many tasks and files some thousands. An index
keeps one for each listing."""

MAX_LINK_CHARS = 1_200
"""Join link of a listing: four addresses of usual length, relays included."""

MAX_TEXT_BYTES = 600
"""Goal, content note or base model in a listing, in UTF-8: a paragraph on a card. The manifest has all of it."""

MAX_BOARD_CHARS = 200
"""Address of a run's board in a listing."""

MAX_VOLUNTEERS = 1_000_000
"""Volunteers that a listing may claim to have, or to miss."""

_DOMAIN = "p2prl/listing/v1"
_MOST_BYTES = 1 << 62

State = Literal["running", "paused", "ended"]


class Listing(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The claims of a listing. It has many fields because a volunteer chooses a run by all of them at once."""

    link: str
    """Join link; its digest names the run."""
    name: str
    goal: str
    """The manifest's goal, as `cut` leaves it."""
    content: str
    """The same of its content policy: nature of the prompts, and of what may be generated."""
    base_model: str
    """The same of its base model."""
    parameters: int
    memory_bytes: int
    """Memory that a volunteer needs for the model, without its samples."""
    disk_bytes: int
    """Disk that a volunteer needs at least."""
    group_bytes: int
    """Most bytes that a volunteer uploads for one group; weights come on top, as far as the volunteer allows."""
    state: State
    """`paused` while its learner is down for a time, `ended` for good."""
    volunteers: int
    """Volunteers at work for the run now, as far as its learner sees."""
    missing: int | None
    """Further volunteers, as fast as those, with which the learner would always be at work, by its forecast; below
    zero: as many are too many. None before there is a forecast."""
    since_ms: int
    """When the run was made."""
    sent_ms: int
    """When this was signed; of two listings of a run the newer one holds."""
    expires_ms: int
    board: str = ""
    """Web address at which the run's board serves its ledger, as `web_address` spells it; empty for none."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` for the first field that no honest learner would sign."""
        for name, text in (
            ("name", self.name),
            ("goal", self.goal),
            ("content", self.content),
            ("base_model", self.base_model),
        ):
            most = limits.MAX_NAME_CHARS if name == "name" else MAX_TEXT_BYTES
            _require(
                text.isprintable() and 0 < len(text.encode()) <= most, f"{name} must be printable, in 1..{most} bytes"
            )
        for count in (self.parameters, self.memory_bytes, self.disk_bytes, self.group_bytes):
            _require(0 < count < _MOST_BYTES, "parameters and sizes must be positive")
        _require(0 <= self.volunteers <= MAX_VOLUNTEERS, "volunteers is out of range")
        _require(self.missing is None or abs(self.missing) <= MAX_VOLUNTEERS, "missing is out of range")
        _require(0 <= self.since_ms < 1 << 53 and 0 <= self.sent_ms < 1 << 53, "impossible time")
        life_ms = self.expires_ms - self.sent_ms
        _require(0 < life_ms <= MAX_LIFE_S * 1000, f"it must expire within {MAX_LIFE_S:.0f} s")
        _require(
            not self.board or (len(self.board) <= MAX_BOARD_CHARS and web_address(self.board) == self.board),
            f"board must be http(s)://HOST[:PORT][/PATH] in its one spelling, of at most {MAX_BOARD_CHARS} characters",
        )


class SignedListing(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The bytes that travel."""

    author: bytes
    body: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class OpenedListing:
    """A listing with a right signature. Whether its author may list this run, `check_source` says."""

    raw: bytes
    """The bytes to pass on."""
    author: bytes
    listing: Listing
    link: JoinLink

    @property
    def run(self) -> Digest:
        """The run's digest."""
        return self.link.run

    @property
    def owner(self) -> PeerId:
        """The peer id of the key that signed it: the run's learner."""
        return peer_id_of(self.author)

    def is_over(self, now: float) -> bool:
        """Whether it has expired at `now`, seconds since the epoch."""
        return now * 1000 >= self.listing.expires_ms


def sign_listing(identity: Identity, listing: Listing) -> bytes:
    """Sign a listing. `RemoteProtocolError` for one that no reader would take: too long, or with a wrong field."""
    listing.check()
    body = encode(listing)
    raw = encode(SignedListing(identity.public_key, body, identity.sign_raw(_signed(identity.public_key, body))))
    _require(len(raw) <= MAX_LISTING_BYTES, f"it has {len(raw)} bytes, of {MAX_LISTING_BYTES}")
    _link_of(listing)
    return raw


def open_listing(raw: bytes, *, now: float) -> OpenedListing:
    """Check a listing's size, signature and schema, in this order.

    Raises `RemoteProtocolError` for what no honest learner signs, `StaleWorkError` for a listing that has expired at
    `now`, seconds since the epoch, or that is dated in the future.
    """
    signed = decode(raw, SignedListing, limit_bytes=MAX_LISTING_BYTES)
    _require(encode(signed) == raw, "it is not in its one encoding")
    # The signature is the last thing that costs little: what follows parses a stranger's texts.
    is_right = len(signed.signature) == SIGNATURE_BYTES and verify_raw(
        signed.author, _signed(signed.author, signed.body), signed.signature
    )
    _require(is_right, "wrong signature")
    listing = decode(signed.body, Listing, limit_bytes=MAX_LISTING_BYTES)
    listing.check()
    opened = OpenedListing(raw, signed.author, listing, _link_of(listing))
    if opened.is_over(now):
        raise StaleWorkError("listing: it has expired")
    if listing.sent_ms > (now + limits.MAX_CLOCK_SKEW_S) * 1000:
        raise StaleWorkError("listing: dated in the future; one of the two clocks is off")
    return opened


def check_source(opened: OpenedListing, manifest_raw: bytes) -> RunManifest:
    """The run's manifest, once it is the one that the link names and the listing's author is its learner.

    Raises `RemoteProtocolError` otherwise. `manifest_raw` is the manifest's envelope, from anybody.
    """
    _require(len(manifest_raw) <= MAX_MANIFEST_BYTES, f"the run's manifest has more than {MAX_MANIFEST_BYTES} bytes")
    _require(envelope_digest(manifest_raw) == opened.run, "this is not the manifest that its link names")
    manifest = body_of(open_envelope(manifest_raw, now=None), RunManifest)
    manifest.check()
    _require(opened.author == manifest.learner, "the key that signed it is not the run's learner's")
    return manifest


def cut(text: str) -> str:
    """A text of a manifest as a listing has it."""
    raw = text.encode()
    if len(raw) <= MAX_TEXT_BYTES:
        return text
    return raw[: MAX_TEXT_BYTES - len("…".encode())].decode(errors="ignore") + "…"


def claimed(listing: Listing, manifest: RunManifest) -> str:
    """The first claim of a listing that differs from the run's manifest, as a sentence; empty when all agree."""
    for what, claim, fact in (
        ("name", listing.name, manifest.name),
        ("goal", listing.goal, cut(manifest.goal)),
        ("content note", listing.content, cut(manifest.content_policy)),
        ("base model", listing.base_model, cut(manifest.base_model)),
        ("parameters", f"{listing.parameters:,}", f"{manifest.parameters:,}"),
        ("date", listing.since_ms, manifest.created_ms),
    ):
        if claim != fact:
            return f"the listing's {what} is {claim!r}, and the run's manifest says {fact!r}"
    return ""


_RUN_ID = re.compile(r"[a-z2-7]{52}")


def run_id(run: Digest) -> str:
    """A run's digest as text: the part of its join link after the @."""
    return str(JoinLink("x", run, ())).partition("@")[2]


def is_run_id(text: str) -> bool:
    """Whether a text has the form of a run's digest."""
    return _RUN_ID.fullmatch(text) is not None


def _link_of(listing: Listing) -> JoinLink:
    _require(len(listing.link) <= MAX_LINK_CHARS, f"its link has more than {MAX_LINK_CHARS} characters")
    try:
        link = parse_link(listing.link, needs_peer=listing.state == "running")
    except ConfigError as error:
        raise RemoteProtocolError(f"listing: {error}") from error
    _require(str(link) == listing.link, "its link is not in its one spelling")
    _require(link.name == listing.name, "its link has another name")
    return link


def _signed(author: bytes, body: bytes) -> bytes:
    return digest(_DOMAIN, author, body)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise RemoteProtocolError(f"listing: {message}")
