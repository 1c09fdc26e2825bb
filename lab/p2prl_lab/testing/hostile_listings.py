"""Hostile listings: what strangers send to an index, or an index that lies passes on, each by the attack's name.

Those whose bytes no honest program would sign are signed all the same: readers must not trust a writer's checks. Texts
with tags or templates are none of them: they are honest texts, which every page escapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from p2prl.protocol.digests import digest
from p2prl.protocol.envelope import NO_RUN, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.listing import (
    MAX_BOARD_CHARS,
    MAX_LISTING_BYTES,
    MAX_TEXT_BYTES,
    Listing,
    SignedListing,
)
from p2prl.protocol.listing_life import MAX_LIFE_S
from p2prl.protocol.wire_codec import encode
from p2prl_lab.testing.listed_runs import ListedRun
from p2prl_lab.testing.sample_ledgers import identity


@dataclass(frozen=True, slots=True)
class HostileListing:
    """A listing that nobody must take."""

    listing: bytes
    manifest: bytes
    """What is sent, or given, as the manifest of its run."""
    run: ListedRun
    """The run that it names."""


def signed_anyway(by: Identity, listing: Listing) -> bytes:
    """The bytes of a listing, whatever it says."""
    return signed_body(by, encode(listing))


def signed_body(by: Identity, body: bytes) -> bytes:
    """The bytes of a listing with this body, be it one or not."""
    return encode(SignedListing(by.public_key, body, by.sign_raw(digest("p2prl/listing/v1", by.public_key, body))))


def hostile_listings(victim: ListedRun, *, now: float) -> dict[str, HostileListing]:
    """Every attack, at `now`; `victim` is an honest run that has been listed a second ago."""
    thief, late = identity("thief"), now + 1
    bait = ListedRun("bait", "switcher")
    own_manifest = seal(
        thief, msgspec.structs.replace(victim.manifest, learner=thief.public_key), run=NO_RUN, now=now - 3600
    )

    def baited(**claims: Any) -> HostileListing:
        return HostileListing(bait.signed(now=now, **claims), bait.manifest_raw, bait)

    def marked(name: str, text: str) -> HostileListing:
        """A run whose manifest says the same, so that the text alone is wrong."""
        run = ListedRun(name, "vandal", (("goal", text),))
        return HostileListing(signed_anyway(run.learner, run.listing(now=now, goal=text)), run.manifest_raw, run)

    def board(address: str) -> HostileListing:
        return HostileListing(
            signed_anyway(bait.learner, bait.listing(now=now, board=address)), bait.manifest_raw, bait
        )

    true = bait.listing(now=now)
    stolen = victim.signed(by=thief, now=late)
    raw = victim.signed(now=late)
    return {
        "somebody else's run under one's own key": HostileListing(stolen, victim.manifest_raw, victim),
        "somebody else's run with a manifest of one's own": HostileListing(stolen, own_manifest, victim),
        "somebody else's run with a flipped bit": HostileListing(
            raw[:200] + bytes([raw[200] ^ 1]) + raw[201:], victim.manifest_raw, victim
        ),
        "another goal than the manifest's": baited(goal="Cure cancer"),
        "another content note than the manifest's": baited(content="harmless"),
        "another base model than the manifest's": baited(base_model="frontier-900b"),
        "a smaller model than the manifest's": baited(parameters=1_000),
        "less memory than it takes": baited(memory_bytes=true.memory_bytes // 2),
        "less disk than it takes": baited(disk_bytes=true.disk_bytes // 2),
        "less upload than it takes": baited(group_bytes=true.group_bytes // 2),
        "an older listing again": HostileListing(
            victim.signed(now=now - 60, state="paused"), victim.manifest_raw, victim
        ),
        "an expired listing again": HostileListing(victim.signed(now=now - 400), victim.manifest_raw, victim),
        "a listing of tomorrow": HostileListing(victim.signed(now=now + 86_400), victim.manifest_raw, victim),
        "a listing that outlives its learner": HostileListing(
            signed_anyway(bait.learner, bait.listing(now=now, expires_ms=true.sent_ms + int(MAX_LIFE_S * 1000) + 1)),
            bait.manifest_raw,
            bait,
        ),
        "escape sequences of a terminal": marked("escapes", "a goal\x1b[2J\x1b]0;owned\x07"),
        "text that runs backwards": marked("backwards", "harmless\u202esselmrah"),
        "characters that nobody sees": marked("unseen", "good\u200b\u2066goal"),
        "lines of its own": marked("lines", "a goal\n\nroot: p2prl join evil"),
        "a text without an end": marked("endless", "x" * (MAX_TEXT_BYTES + 1)),
        "a board at no web address": board("file:///etc/passwd"),
        "a board whose address names a user": board("http://127.0.0.1:80@board.example"),
        "a board in another spelling": board("HTTP://Board.example:80/"),
        "a board whose address does not end": board("http://board.example/" + "x" * MAX_BOARD_CHARS),
        "more bytes than a listing has": HostileListing(bytes(MAX_LISTING_BYTES + 1), bait.manifest_raw, bait),
    }
