"""Listings: size, signature and schema in this order; only its learner lists a run, and by its manifest's facts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.index.run_facts import checked_manifest, listing_of
from p2prl.protocol import listing as listings
from p2prl.protocol.digests import digest
from p2prl.protocol.envelope import NO_RUN, seal
from p2prl.protocol.identity import verify_raw
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.listing import (
    MAX_BOARD_CHARS,
    MAX_LISTING_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_TEXT_BYTES,
    Listing,
    SignedListing,
    check_source,
    claimed,
    cut,
    is_run_id,
    open_listing,
    run_id,
    sign_listing,
)
from p2prl.protocol.listing_life import MAX_LIFE_S
from p2prl.protocol.wire_codec import decode, encode
from p2prl_lab.testing.listed_runs import NOW, ListedRun
from p2prl_lab.testing.sample_ledgers import identity

RUN = ListedRun()


def test_a_listing_says_what_the_manifest_says() -> None:
    opened = open_listing(RUN.signed(volunteers=3, missing=-1), now=NOW)
    assert (opened.run, opened.author, opened.owner) == (RUN.run, RUN.learner.public_key, RUN.learner.peer_id)
    assert (opened.listing.name, opened.listing.goal) == (RUN.manifest.name, RUN.manifest.goal)
    assert (opened.listing.volunteers, opened.listing.missing) == (3, -1)
    assert checked_manifest(opened, RUN.manifest_raw) == RUN.manifest


def test_every_changed_byte_breaks_the_signature_or_the_form() -> None:
    raw = RUN.signed()
    for place in range(0, len(raw), 7):
        damaged = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
        with pytest.raises(RemoteProtocolError):
            open_listing(damaged, now=NOW)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_and_raise_nothing_else(raw: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        open_listing(raw, now=NOW)


def test_size_comes_before_the_signature_and_the_signature_before_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    verify, decoded = verify_raw, decode

    def noted_verify(key: bytes, data: bytes, signature: bytes) -> bool:
        seen.append("signature")
        return verify(key, data, signature)

    def noted_decode(raw: bytes, kind: type[Any], *, limit_bytes: int) -> Any:
        seen.append(kind.__name__)
        return decoded(raw, kind, limit_bytes=limit_bytes)

    monkeypatch.setattr(listings, "verify_raw", noted_verify)
    monkeypatch.setattr(listings, "decode", noted_decode)
    with pytest.raises(RemoteProtocolError, match="exceeds the limit"):
        open_listing(bytes(MAX_LISTING_BYTES + 1), now=NOW)
    assert seen == ["SignedListing"]  # its first act is to look at the size
    seen.clear()
    unsigned = encode(SignedListing(RUN.learner.public_key, b"no listing", bytes(64)))
    with pytest.raises(RemoteProtocolError, match="wrong signature"):
        open_listing(unsigned, now=NOW)
    assert seen == ["SignedListing", "signature"]


def test_a_second_encoding_of_the_same_claims_is_refused() -> None:
    signed = decode(RUN.signed(), SignedListing, limit_bytes=MAX_LISTING_BYTES)
    other = msgspec.msgpack.encode([signed.author, signed.body, signed.signature]).replace(
        b"\xc4\x20", b"\xc5\x00\x20", 1
    )
    assert decode(other, SignedListing, limit_bytes=MAX_LISTING_BYTES) == signed
    with pytest.raises(RemoteProtocolError, match="one encoding"):
        open_listing(other, now=NOW)


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"goal": ""}, "goal must be"),
        ({"goal": "x" * (MAX_TEXT_BYTES + 1)}, "goal must be"),
        ({"content": "right\u202eleft"}, "content must be"),
        ({"name": "a\nb"}, "name must be"),
        ({"base_model": "x" * (MAX_TEXT_BYTES + 1)}, "base_model must be"),
        ({"parameters": 0}, "positive"),
        ({"memory_bytes": -1}, "positive"),
        ({"disk_bytes": 0}, "positive"),
        ({"group_bytes": 0}, "positive"),
        ({"volunteers": -1}, "volunteers"),
        ({"volunteers": listings.MAX_VOLUNTEERS + 1}, "volunteers"),
        ({"missing": -listings.MAX_VOLUNTEERS - 1}, "missing"),
        ({"sent_ms": 1 << 53, "expires_ms": (1 << 53) + 1}, "impossible time"),
        ({"since_ms": -1}, "impossible time"),
        ({"expires_ms": int(NOW * 1000)}, "expire within"),
        ({"expires_ms": int(NOW * 1000 + MAX_LIFE_S * 1000) + 1}, "expire within"),
        ({"link": str(ListedRun("another").link)}, "another name"),
        ({"link": "p2prl://nothing"}, "no @"),
        ({"link": str(RUN.link).upper()[:8].lower() + str(RUN.link)[8:] + "&amp;"}, "link"),
        ({"link": "p2prl://" + "x" * listings.MAX_LINK_CHARS}, "characters"),
    ],
)
def test_impossible_claims_are_neither_signed_nor_read(claims: dict[str, Any], words: str) -> None:
    wrong = RUN.listing(**claims)
    with pytest.raises(RemoteProtocolError, match=words):
        sign_listing(RUN.learner, wrong)
    body = encode(wrong)
    signature = RUN.learner.sign_raw(digest("p2prl/listing/v1", RUN.learner.public_key, body))
    with pytest.raises(RemoteProtocolError, match=words):
        open_listing(encode(SignedListing(RUN.learner.public_key, body, signature)), now=NOW)


def test_the_longest_texts_and_addresses_still_fit() -> None:
    wide = "\U0001f600" * 500
    run = ListedRun("x" * 64, changes=(("goal", wide), ("content_policy", wide), ("base_model", wide)))
    peers = tuple(f"/dns4/{'x' * 180}{n}/tcp/4001/p2p/{RUN.learner.peer_id}" for n in range(8))
    link = JoinLink(run.name, run.run, peers)
    told = listing_of(run.manifest, link, state="running", volunteers=0, missing=0, now=NOW)
    kept = open_listing(sign_listing(run.learner, told), now=NOW).link.bootstrap
    assert kept == peers[: len(kept)]
    assert 0 < len(kept) <= 4


def test_an_expired_listing_and_one_from_the_future_are_stale() -> None:
    raw = RUN.signed()
    end = RUN.listing().expires_ms / 1000
    assert open_listing(raw, now=end - 0.001).listing.volunteers == 1
    with pytest.raises(StaleWorkError, match="expired"):
        open_listing(raw, now=end)
    assert open_listing(raw, now=NOW - 30.0).listing.volunteers == 1
    with pytest.raises(StaleWorkError, match="future"):
        open_listing(raw, now=NOW - 30.1)


def test_a_run_that_is_down_may_name_no_peer() -> None:
    link = str(RUN.link).partition("?")[0]
    assert open_listing(RUN.signed(state="ended", link=link), now=NOW).link.bootstrap == ()
    with pytest.raises(RemoteProtocolError, match="names no peer"):
        RUN.signed(link=link)


def test_nobody_lists_the_run_of_another() -> None:
    thief = identity("thief")
    stolen = open_listing(RUN.signed(by=thief), now=NOW)
    with pytest.raises(RemoteProtocolError, match="not the run's learner's"):
        check_source(stolen, RUN.manifest_raw)
    # A manifest of the thief's own, with the same words, is another run: the link's digest tells.
    own = seal(thief, msgspec.structs.replace(RUN.manifest, learner=thief.public_key), run=NO_RUN, now=NOW - 3600)
    with pytest.raises(RemoteProtocolError, match="not the manifest that its link names"):
        check_source(stolen, own)
    with pytest.raises(RemoteProtocolError, match="more than"):
        check_source(stolen, bytes(MAX_MANIFEST_BYTES + 1))


@pytest.mark.parametrize(
    ("claims", "words"),
    [
        ({"goal": "Cure cancer"}, "goal is 'Cure cancer'"),
        ({"content": "harmless"}, "content note is 'harmless'"),
        ({"base_model": "frontier 900B"}, "base model"),
        ({"parameters": 1_000}, "parameters is '1,000'"),
        ({"since_ms": 1}, "date"),
    ],
)
def test_claims_that_differ_from_the_manifest_are_told_in_a_sentence(claims: dict[str, Any], words: str) -> None:
    opened = RUN.opened(**claims)
    assert words in claimed(opened.listing, RUN.manifest)
    with pytest.raises(RemoteProtocolError, match="manifest says"):
        checked_manifest(opened, RUN.manifest_raw)


@pytest.mark.parametrize("what", ["memory_bytes", "disk_bytes", "group_bytes"])
def test_a_need_may_be_estimated_otherwise_by_a_fifth_and_no_less(what: str) -> None:
    true = getattr(RUN.listing(), what)
    checked_manifest(RUN.opened(**{what: int(true * 0.81)}), RUN.manifest_raw)
    checked_manifest(RUN.opened(**{what: true * 3}), RUN.manifest_raw)
    with pytest.raises(RemoteProtocolError, match="by the run's manifest it takes"):
        checked_manifest(RUN.opened(**{what: int(true * 0.79)}), RUN.manifest_raw)


def test_a_listing_without_a_board_is_read_as_one_that_names_none() -> None:
    with_board = RUN.opened(board="https://board.example.org/run-1").listing
    assert with_board.board == "https://board.example.org/run-1"
    body = msgspec.msgpack.decode(encode(RUN.listing()))
    assert decode(msgspec.msgpack.encode(body[:-1]), Listing, limit_bytes=MAX_LISTING_BYTES) == RUN.listing()
    longest = "http://b.example/" + "x" * (MAX_BOARD_CHARS - len("http://b.example/"))
    assert RUN.opened(board=longest).listing.board == longest
    for wrong in (longest + "x", "https://board.example.org/", "board.example.org", "https://board.example.org?x=1"):
        with pytest.raises(RemoteProtocolError, match="one spelling, of at most 200 characters"):
            RUN.signed(board=wrong)


def test_long_texts_are_cut_alike_on_both_sides() -> None:
    assert cut("x" * MAX_TEXT_BYTES) == "x" * MAX_TEXT_BYTES
    for wide in ("x", "é", "\u6f22", "\U0001f600"):
        short = cut(wide * (MAX_TEXT_BYTES + 1))
        assert MAX_TEXT_BYTES - 4 < len(short.encode()) <= MAX_TEXT_BYTES
        assert set(short) == {wide, "…"}
    run = ListedRun(changes=(("goal", "very long " * 100),))
    assert checked_manifest(run.opened(), run.manifest_raw) == run.manifest


def test_a_run_has_one_name_as_text() -> None:
    assert str(RUN.link).partition("@")[2].startswith(run_id(RUN.run))
    assert is_run_id(run_id(RUN.run))
    assert not is_run_id(run_id(RUN.run)[:-1])


def test_every_claim_is_covered_by_a_check() -> None:
    checked = {"name", "goal", "content", "base_model", "parameters", "memory_bytes", "disk_bytes", "group_bytes"}
    checked |= {"link", "since_ms"}  # held against the manifest
    own = {"state", "volunteers", "missing", "sent_ms", "expires_ms", "board"}  # the learner's word alone
    assert checked | own == set(Listing.__struct_fields__)
