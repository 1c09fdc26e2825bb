"""Frames and envelopes from any bytes: messages or `RemoteProtocolError`, and exact round trips."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from p2prl.errors import LocalProtocolError, RemoteProtocolError, StaleWorkError
from p2prl.protocol import frames, limits
from p2prl.protocol.delegation import sign_delegation
from p2prl.protocol.envelope import SIGNED_MESSAGES, Envelope, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_chain import GENESIS, LedgerEntry, append, follow
from p2prl.protocol.ledger_messages import StorageReceipt
from p2prl.protocol.link_messages import (
    LINK_MESSAGES,
    BlobQuery,
    Chunk,
    ChunkCancel,
    ChunkGrant,
    ChunkRefused,
    ChunkRequest,
    FollowPiece,
    FollowQuery,
    GrantDeclined,
    Have,
    Hello,
    LedgerPage,
    LedgerQuery,
    LinkRates,
    Meeting,
    MeetingRequest,
    Offer,
    Push,
    Want,
)
from p2prl.protocol.peer_messages import PeerRecord
from p2prl.protocol.wire_codec import Wire, decode, encode
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl_lab.testing.protocol_swarm import group_of

KEY = Identity(b"k" * 16)
NOW = 1_800_000_000.0

names = st.binary(min_size=32, max_size=32)
number = st.integers(min_value=0, max_value=(1 << 63) - 1)
link_messages: st.SearchStrategy[Wire] = st.one_of(
    st.builds(
        Hello,
        wire_version=number,
        run=names,
        role=st.integers(1, 5),
        now_ms=number,
        newest_version=st.integers(-1, 1 << 48),
        ledger_height=number,
    ),
    st.builds(Offer, st.lists(names, max_size=5).map(tuple)),
    st.builds(Want, st.lists(names, max_size=5).map(tuple)),
    st.builds(Push, st.binary(max_size=300)),
    st.builds(Have, names, st.binary(max_size=40)),
    st.builds(ChunkRequest, names, number),
    st.builds(
        Chunk,
        st.binary(min_size=32, max_size=32),
        st.integers(0, (1 << 32) - 1),
        st.integers(0, 18).map(lambda digests: bytes(range(32)) * digests),
        st.binary(max_size=3000),
    ),
    st.builds(ChunkRefused, names, number, number),
    st.builds(BlobQuery, names),
    st.builds(LinkRates, number, number),
    st.builds(ChunkGrant, names, number),
    st.builds(GrantDeclined, names, number),
    st.builds(ChunkCancel, names, number),
    st.builds(MeetingRequest, names),
    st.builds(Meeting, names, st.text(max_size=40), st.booleans()),
    st.builds(LedgerQuery, number),
    st.builds(LedgerPage, number, st.lists(st.binary(max_size=50), max_size=4).map(tuple)),
    st.builds(FollowQuery, st.binary(max_size=80), number, number, number, number),
    st.builds(FollowPiece, number, number, number, st.binary(max_size=50)),
)


@given(st.lists(link_messages, max_size=20))
def test_frame_round_trip(messages: list[Wire]) -> None:
    packed = [frames.pack(message) for message in messages]
    sent = list(frames.join(packed))
    assert [m for frame in sent for m in frames.unpack(frame)] == messages
    assert b"".join(sent) == b"".join(packed)
    assert [p for frame in sent for _, p in frames.split(frame)] == packed


@given(st.lists(st.integers(0, limits.MAX_CONTROL_FRAME_BYTES), max_size=12))
def test_join_keeps_frames_small(sizes: list[int]) -> None:
    sent = list(frames.join([bytes(size) for size in sizes if size]))
    assert all(len(frame) <= limits.MAX_CONTROL_FRAME_BYTES for frame in sent)
    assert sum(map(len, sent)) == sum(sizes)


def test_join_counts_messages() -> None:
    many = [frames.pack(LedgerQuery(0))] * (2 * limits.MAX_MESSAGES_PER_FRAME + 1)
    counts = [len(list(frames.unpack(frame))) for frame in frames.join(many)]
    assert counts == [limits.MAX_MESSAGES_PER_FRAME, limits.MAX_MESSAGES_PER_FRAME, 1]


@given(st.binary(max_size=400))
@example(b"")
@example(b"\x07\x00\x00\x00\x00")
@settings(max_examples=400)
def test_any_bytes_are_messages_or_an_error(data: bytes) -> None:
    try:
        for message in frames.unpack(data):
            assert type(message) in LINK_MESSAGES.values()
    except RemoteProtocolError:
        pass


@given(st.sampled_from(sorted(LINK_MESSAGES)), st.binary(max_size=200))
@settings(max_examples=400)
def test_any_body_is_a_message_or_an_error(kind: Kind, body: bytes) -> None:
    frame = struct.pack("<BI", kind, len(body)) + body
    try:
        (message,) = frames.unpack(frame)
    except RemoteProtocolError:
        return
    assert type(message) is LINK_MESSAGES[kind]


@given(link_messages, st.integers(0, 10_000), st.integers(0, 7))
@settings(max_examples=300)
def test_damaged_frame_is_messages_or_an_error(message: Wire, place: int, bit: int) -> None:
    frame = bytearray(frames.pack(message) * 2)
    frame[place % len(frame)] ^= 1 << bit
    for data in (bytes(frame), bytes(frame[: place % len(frame)])):
        with contextlib.suppress(RemoteProtocolError):
            list(frames.unpack(data))


@given(st.sampled_from([*LINK_MESSAGES.values(), *SIGNED_MESSAGES.values(), Envelope, LedgerEntry]), st.binary())
@settings(max_examples=600)
def test_decode_gives_the_struct_or_an_error(kind: type[Wire], data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert type(decode(data, kind, limit_bytes=1 << 20)) is kind


@given(st.binary(max_size=300))
@settings(max_examples=300)
def test_any_bytes_are_no_envelope(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        open_envelope(data, now=NOW)
    with pytest.raises(RemoteProtocolError):
        follow(append(0, GENESIS, data)[0], height=0, head=GENESIS, run=bytes(32), learner=KEY.public_key)


@given(st.integers(0, 1 << 30), st.integers(0, 7))
@settings(max_examples=150)
def test_flipped_bit_is_refused(place: int, bit: int) -> None:
    record = PeerRecord(1, ("/ip4/1.2.3.4",), 0, 0)
    delegation = sign_delegation(KEY, bytes(32), serial=1, expires_ms=2)
    bodies = (group_of(3), run_manifest_of(KEY), StorageReceipt((bytes(32),)), record, delegation)
    raw = bytearray(seal(KEY, bodies[place % len(bodies)], run=bytes(32), now=NOW))
    raw[place % len(raw)] ^= 1 << bit
    with pytest.raises((RemoteProtocolError, StaleWorkError)):
        open_envelope(bytes(raw), now=NOW)


@given(link_messages, link_messages, st.integers(1, 10_000))
def test_a_message_that_is_cut_short_is_no_message(first: Wire, second: Wire, cut: int) -> None:
    whole, last = frames.pack(first), frames.pack(second)
    kept = last[: max(1, len(last) - cut)]
    arrived = frames.unpack(whole + kept)
    assert next(arrived) == first
    with pytest.raises(RemoteProtocolError, match="frame: truncated"):
        next(arrived)


def test_depth_is_bounded() -> None:
    for bomb in (b"\x91" * 200_000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x81" * 200_000):
        frame = struct.pack("<BI", Kind.OFFER, len(bomb)) + bomb
        with pytest.raises(RemoteProtocolError):
            list(frames.unpack(frame))


def test_frame_limits() -> None:
    chunk = Chunk(bytes(32), limits.MAX_CHUNKS - 1, bytes(limits.MAX_PROOF_BYTES), bytes(limits.MAX_CHUNK_BYTES))
    assert list(frames.unpack(frames.pack(chunk))) == [chunk]
    with pytest.raises(RemoteProtocolError, match="chunk"):
        list(frames.unpack(frames.pack(Chunk(bytes(32), 0, b"", bytes(limits.MAX_CHUNK_BYTES + 1)))))
    for proof in (bytes(limits.MAX_PROOF_BYTES + 32), bytes(64)):
        packed = frames.pack(Chunk(bytes(32), 0, proof, b""))
        with pytest.raises(RemoteProtocolError, match="chunk"):
            list(frames.unpack(packed[:1] + (37 + 63).to_bytes(4, "little") + packed[5:105]))
    with pytest.raises(RemoteProtocolError, match="truncated"):
        list(frames.unpack(bytes((Kind.CHUNK,)) + (36).to_bytes(4, "little") + bytes(36)))
    with pytest.raises(RemoteProtocolError, match="frame of"):
        list(frames.unpack(bytes(limits.MAX_FRAME_BYTES + 1)))
    query = frames.pack(LedgerQuery(0))
    assert len(list(frames.unpack(query * limits.MAX_MESSAGES_PER_FRAME))) == limits.MAX_MESSAGES_PER_FRAME
    with pytest.raises(RemoteProtocolError, match="more than"):
        list(frames.unpack(query * (limits.MAX_MESSAGES_PER_FRAME + 1)))
    room = limits.MAX_CONTROL_FRAME_BYTES - len(encode(Push(b""))) - 3
    assert len(list(frames.unpack(frames.pack(Push(bytes(room)))))) == 1
    with pytest.raises(RemoteProtocolError, match="limit"):
        list(frames.unpack(frames.pack(Push(bytes(room + 1)))))


def test_largest_envelope_fits_a_frame() -> None:
    pushed = frames.pack(Push(bytes(limits.MAX_ENVELOPE_BYTES)))
    assert len(pushed) <= limits.MAX_CONTROL_FRAME_BYTES
    assert len(list(frames.unpack(pushed))) == 1


def test_signed_message_is_no_link_message() -> None:
    with pytest.raises(LocalProtocolError):
        frames.pack(StorageReceipt(()))
