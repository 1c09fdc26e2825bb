"""Signed envelopes: canonical encoding, signature coverage, replay window."""

from __future__ import annotations

import copy
import threading

import msgspec
import pytest

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol import limits
from p2prl.protocol.envelope import (
    DOMAINS,
    OPENINGS,
    SIGNED_MESSAGES,
    Envelope,
    Opened,
    Openings,
    body_of,
    envelope_digest,
    open_envelope,
    seal,
)
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import LedgerHead, StorageReceipt, Verdict
from p2prl.protocol.wire_codec import decode, encode

ALICE, BOB = Identity(b"a" * 16), Identity(b"b" * 16)
RUN = bytes(range(32))
NOW = 1_800_000_000.0
BODY = StorageReceipt((bytes(32), b"\x01" * 32))


def reseal(raw: bytes, **changes: object) -> bytes:
    """The envelope with fields replaced and the old signature."""
    return encode(msgspec.structs.replace(decode(raw, Envelope, limit_bytes=1 << 20), **changes))


def test_round_trip() -> None:
    raw = seal(ALICE, BODY, run=RUN, now=NOW)
    opened = open_envelope(raw, now=NOW)
    assert (opened.body, opened.kind, opened.author, opened.run) == (BODY, Kind.STORAGE_RECEIPT, ALICE.public_key, RUN)
    assert opened.sent_ms == int(NOW * 1000)
    assert opened.digest == envelope_digest(raw)
    assert opened.raw == raw


def test_flipped_bits_are_refused() -> None:
    raw = seal(ALICE, StorageReceipt((bytes(32),)), run=RUN, now=NOW)
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises((RemoteProtocolError, StaleWorkError)):
            open_envelope(bytes(flipped), now=NOW)
        with pytest.raises(RemoteProtocolError):
            open_envelope(bytes(flipped), now=None)


def test_wrong_lengths_are_refused() -> None:
    raw = seal(ALICE, BODY, run=RUN, now=NOW)
    for size in range(len(raw)):
        with pytest.raises(RemoteProtocolError):
            open_envelope(raw[:size], now=NOW)
    with pytest.raises(RemoteProtocolError):
        open_envelope(raw + b"\x00", now=NOW)


def test_signature_covers_every_field() -> None:
    raw = seal(ALICE, BODY, run=RUN, now=NOW)
    head = encode(LedgerHead(1, bytes(32), 1, False))
    for changes in (
        {"author": BOB.public_key},
        {"run": bytes(32)},
        {"sent_ms": int(NOW * 1000) + 1},
        {"kind": int(Kind.VERDICT)},
        {"kind": int(Kind.LEDGER_HEAD), "body": head},
        {"body": encode(StorageReceipt((bytes(32),)))},
        {"kind": int(Kind.HELLO)},
        {"kind": 200},
        {"sent_ms": -1},
        {"sent_ms": 1 << 53},
        {"author": ALICE.public_key[:-1]},
        {"run": b""},
    ):
        with pytest.raises(RemoteProtocolError):
            open_envelope(reseal(raw, **changes), now=None)


def test_only_one_encoding_is_accepted() -> None:
    # The framing of the envelope is not signed. Write its body as bin32 instead of bin8: same value, same signature.
    raw = seal(ALICE, BODY, run=RUN, now=NOW)
    body = decode(raw, Envelope, limit_bytes=1 << 20).body
    short = b"\xc4" + bytes((len(body),)) + body
    assert raw.count(short) == 1
    other = raw.replace(short, b"\xc6" + len(body).to_bytes(4, "big") + body)
    assert decode(other, Envelope, limit_bytes=1 << 20) == decode(raw, Envelope, limit_bytes=1 << 20)
    assert envelope_digest(other) != envelope_digest(raw)
    with pytest.raises(RemoteProtocolError, match="encoding"):
        open_envelope(other, now=None)


def test_replay_window_and_clock_skew() -> None:
    raw = seal(ALICE, BODY, run=RUN, now=NOW)
    open_envelope(raw, now=NOW + limits.MAX_ENVELOPE_AGE_S)
    open_envelope(raw, now=NOW - limits.MAX_CLOCK_SKEW_S)
    open_envelope(raw, now=None)
    for now in (NOW + limits.MAX_ENVELOPE_AGE_S + 0.01, NOW - limits.MAX_CLOCK_SKEW_S - 0.01):
        with pytest.raises(StaleWorkError):
            open_envelope(raw, now=now)


def test_size_is_checked_first() -> None:
    with pytest.raises(RemoteProtocolError, match="limit"):
        open_envelope(bytes(limits.MAX_ENVELOPE_BYTES + 1), now=None)


def test_a_long_signature_is_refused_and_not_kept() -> None:
    raw = seal(ALICE, StorageReceipt((bytes(32),)), run=RUN, now=1e9)
    held_bytes = OPENINGS.held_bytes
    for length in (0, 63, 65, 100_000):
        with pytest.raises(RemoteProtocolError, match="wrong signature"):
            open_envelope(reseal(raw, signature=bytes(length)), now=1e9)
    assert OPENINGS.held_bytes == held_bytes


def test_an_envelope_is_opened_once_while_it_is_kept_and_the_oldest_goes() -> None:
    calls: list[bytes] = []

    def open_raw(raw: bytes) -> Opened:
        calls.append(raw)
        return open_envelope(raw, now=None)

    envelopes = [seal(ALICE, StorageReceipt((bytes([index]) * 32,)), run=RUN, now=NOW) for index in range(16)]
    size = len(envelopes[0])
    openings = Openings(16 * size, open_raw)
    for raw in (*envelopes, *envelopes):
        assert openings.get(raw).raw == raw
    assert calls == envelopes
    openings.get(envelopes[0])  # used last
    assert openings.get(other := seal(ALICE, StorageReceipt((bytes(32), b"")), run=RUN, now=NOW)).raw == other
    newest = seal(ALICE, StorageReceipt((b"n" * 32,)), run=RUN, now=NOW)
    openings.get(newest)
    assert openings.held_bytes == 16 * size
    calls.clear()
    openings.get(envelopes[0])
    assert calls == []
    openings.get(envelopes[1])
    assert calls == [envelopes[1]]


def test_an_envelope_that_two_threads_open_at_once_is_counted_once() -> None:
    raw, both = seal(ALICE, BODY, run=RUN, now=NOW), threading.Barrier(2, timeout=10)

    def open_raw(raw: bytes) -> Opened:
        both.wait()
        return copy.copy(open_envelope(raw, now=NOW))

    openings = Openings(16 * len(raw), open_raw)
    threads = [threading.Thread(target=openings.get, args=(raw,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert openings.held_bytes == len(raw)


def test_a_kept_envelope_still_grows_too_old() -> None:
    raw = seal(ALICE, StorageReceipt((bytes(32),)), run=RUN, now=NOW)
    open_envelope(raw, now=NOW)
    with pytest.raises(StaleWorkError):
        open_envelope(raw, now=NOW + limits.MAX_ENVELOPE_AGE_S + 1)


def test_body_of_refuses_another_kind() -> None:
    opened = open_envelope(seal(ALICE, BODY, run=RUN, now=NOW), now=None)
    assert body_of(opened, StorageReceipt) is opened.body
    with pytest.raises(RemoteProtocolError):
        body_of(opened, Verdict)


def test_body_of_another_kind_is_refused() -> None:
    from p2prl.protocol.digests import digest

    payload = encode(LedgerHead(1, bytes(32), 1, False))
    sent_ms = int(NOW * 1000)
    signed = digest(DOMAINS[Kind.ROLLOUT_GROUP], RUN, ALICE.public_key, sent_ms.to_bytes(8, "little"), payload)
    envelope = Envelope(int(Kind.ROLLOUT_GROUP), RUN, ALICE.public_key, sent_ms, payload, ALICE.sign_raw(signed))
    with pytest.raises(RemoteProtocolError, match="RolloutGroup"):
        open_envelope(encode(envelope), now=NOW)


def test_domains_differ() -> None:
    assert set(DOMAINS) == set(SIGNED_MESSAGES)
    assert len(set(DOMAINS.values())) == len(DOMAINS)
    assert all(domain.startswith("p2prl/") and domain.endswith("/v1") for domain in DOMAINS.values())
