"""Group headers, bodies and chunk messages from anybody: groups or `RemoteProtocolError`, and never past a budget."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import open_envelope, seal
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.link_messages import Chunk, place_of
from p2prl.protocol.manifests import BlobRef, blob_of
from p2prl.protocol.rollout_group import GroupHeader
from p2prl.protocol.signed_group import read_group
from p2prl.protocol.wire_codec import encode
from p2prl.swarm.groups.group_bodies import GroupBodies
from p2prl.swarm.groups.groups_config import GroupBodyConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from p2prl_lab.testing.protocol_swarm import group_of
from tests.unit.swarm.relays import chunk

KEY, NOW, PART = Identity(b"k" * 16), 1_800_000_000.0, limits.GROUP_PART_BYTES
PEERS = [Identity(bytes([number]) * 16).peer_id for number in range(3)]


def header_of(body: bytes) -> bytes:
    return seal(KEY, GroupHeader(0, bytes(32), 0, blob_of(body, PART)), run=bytes(32), now=NOW)


@given(st.binary(max_size=300), st.integers(0, 2))
@settings(max_examples=100)
def test_any_body_is_a_group_or_an_error(start: bytes, kind: int) -> None:
    padding = bytes(limits.MAX_ENVELOPE_BYTES)
    body = (start + padding, encode(group_of(1)) + start + padding, padding)[kind]
    with pytest.raises(RemoteProtocolError):
        read_group(header_of(body), body)


digests = st.binary(min_size=0, max_size=33)
refs = st.builds(
    BlobRef,
    st.integers(-1, 1 << 62),
    st.sampled_from([0, 1, PART, PART + 1]),
    digests | st.lists(digests, max_size=4).map(tuple),
)


@given(st.integers(-(1 << 62), 1 << 62), digests, st.integers(-1, 1 << 40), refs)
@settings(max_examples=300)
def test_any_header_is_legal_or_an_error(version: int, policy: bytes, slot: int, ref: BlobRef) -> None:
    header = GroupHeader(version, policy, slot, ref)
    with contextlib.suppress(RemoteProtocolError):
        header.check()
        assert ref.size_bytes <= limits.MAX_GROUP_BYTES
        assert ref.chunk_bytes == PART
        assert ref.total == -(-ref.size_bytes // PART)
        names = (ref.tree,) if isinstance(ref.tree, bytes) else ref.tree
        assert (len(policy), {len(name) for name in names}) == (32, {32})


BODIES = [bytes([number]) * (2 * PART + number) for number in range(4)]
HEADERS = [open_envelope(header_of(body), now=NOW) for body in BODIES]
PARTS = [chunk(body, blob_of(body, PART), index) for body in BODIES for index in range(blob_of(body, PART).total)]
CONFIG = GroupBodyConfig(
    known=3, known_per_source=2, sources=2, window=2, author_bytes=3 * PART, disk_bytes=3 * PART, sending=3,
    sending_per_peer=2, queued_per_peer=2, pulled=2, own_bytes=3 * PART,
)  # fmt: skip

peers, headers, parts = st.sampled_from(PEERS), st.integers(0, 3), st.integers(0, len(PARTS) - 1)
acts = st.one_of(
    st.tuples(st.just("note"), peers, headers),
    st.tuples(st.just("own"), peers, headers),
    st.tuples(st.just("hold"), peers, headers),
    st.tuples(st.just("fetch"), peers, headers),
    st.tuples(st.just("release"), peers, headers),
    st.tuples(st.just("request"), peers, parts),
    st.tuples(st.just("part"), peers, parts),
    st.tuples(st.just("refuse"), peers, parts),
    st.tuples(st.just("lose"), peers, headers),
    st.tuples(st.just("wait"), peers, st.integers(0, 1000)),
)


@given(st.lists(acts, max_size=60))
@settings(max_examples=200)
def test_no_order_of_messages_exceeds_a_budget(steps: list[tuple[str, PeerId, int]]) -> None:
    store, now = MemoryBlobs(), NOW
    bodies = GroupBodies(store, CONFIG, is_learner=lambda peer: peer == PEERS[0])
    sending: dict[PeerId, int] = dict.fromkeys(PEERS, 0)
    for act, peer, number in steps:
        match act:
            case "note":
                bodies.note(HEADERS[number], peer)
            case "own":
                bodies.note(HEADERS[number], None)
            case "hold":
                bodies.hold(HEADERS[number].digest, BODIES[number])
            case "fetch":
                bodies.fetch(HEADERS[number].digest, now)
            case "release":
                bodies.release(HEADERS[number].digest, now)
            case "request":
                bodies.on_request(peer, place_of(PARTS[number]), now)
            case "part":
                bodies.on_part(peer, PARTS[number], now)
            case "refuse":
                bodies.on_refused(peer, place_of(PARTS[number]), number * 100 - 100, now)
            case "lose":
                bodies.remove_peer(peer)
            case "wait":
                now += number
                if bodies.next_deadline() <= now:
                    bodies.handle_timer(now)
        bodies.flush(now)
        for target, message in bodies.outbox:
            if isinstance(message, Chunk):
                assert message in PARTS
                sending[target] += 1
        bodies.outbox.clear()
        assert max(sending.values()) <= CONFIG.sending_per_peer
        assert sum(sending.values()) <= CONFIG.sending
        assert store.size_bytes <= CONFIG.disk_bytes
        assert bodies.next_deadline() > now - 1000
        if act == "wait":
            for target, count in sending.items():
                for _ in range(count):
                    bodies.upload_done(target)
            sending = dict.fromkeys(PEERS, 0)
    for completed in bodies.take_completed():
        whole = store.by_root(Digest(completed.ref.root)) if store.holds(completed.ref.root) else None
        assert whole is None or whole in BODIES
