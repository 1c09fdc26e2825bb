"""Any bytes from any peer: a node never raises, never forwards junk, and its deadlines stay ahead."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.protocol import frames, wire_version
from p2prl.protocol.envelope import envelope_digest, open_envelope, seal
from p2prl.protocol.identity import PeerId, peer_id_of
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import StorageReceipt
from p2prl.protocol.link_messages import (
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
from p2prl.protocol.manifests import PolicyManifest, blob_of
from p2prl.protocol.peer_messages import Introduction
from p2prl.protocol.wire_codec import Wire
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_time import START
from p2prl.swarm.events import Send
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from p2prl_lab.testing.protocol_swarm import group_of

LEARNER, LIAR = identity_of("learner"), identity_of("liar")
MANIFEST = seal(LEARNER, run_manifest_of(LEARNER, weight_bytes=25_600), run=bytes(32), now=START)
RUN = envelope_digest(MANIFEST)
REF = blob_of(bytes(range(256)) * 100, 4096)
POLICY = seal(LEARNER, PolicyManifest(0, 0, REF, bytes(32), b"", bytes(32), 0), run=RUN, now=START)
FORGED = [
    seal(LIAR, PolicyManifest(0, 0, REF, bytes(32), b"", bytes(32), 0), run=RUN, now=START),
    seal(LIAR, StorageReceipt((bytes(32),)), run=RUN, now=START),
    seal(LIAR, group_of(1), run=bytes(32), now=START),
    seal(LIAR, Introduction(identity_of("me").public_key, (LIAR.public_key,)), run=RUN, now=START),
    MANIFEST,
]
GOOD = [POLICY, seal(LIAR, group_of(1), run=RUN, now=START)]

names = st.sampled_from([RUN, REF.root, envelope_digest(POLICY), bytes(32), b"short"])
number = st.integers(-(1 << 63), (1 << 63) - 1)
messages: st.SearchStrategy[Wire] = st.one_of(
    st.builds(
        Hello,
        wire_version=st.sampled_from([wire_version.WIRE_VERSION] * 4 + [wire_version.WIRE_VERSION + 1]),
        run=st.sampled_from([RUN, RUN, bytes(32)]),
        role=st.sampled_from([*map(int, Role), 9]),
        now_ms=number,
        newest_version=number,
        ledger_height=number,
    ),
    st.builds(Offer, st.lists(names, max_size=4).map(tuple)),
    st.builds(Want, st.lists(names, max_size=4).map(tuple)),
    st.builds(Push, st.sampled_from([*FORGED, *GOOD, b"junk"])),
    st.builds(Have, names, st.binary(max_size=3)),
    st.builds(ChunkRequest, names, number),
    st.builds(
        Chunk,
        st.sampled_from([REF.root, bytes(32)]),
        st.integers(0, 3),
        st.binary(max_size=2).map(lambda data: 32 * data),
        st.sampled_from([bytes(range(256)) * 16, b"poison"]),
    ),
    st.builds(ChunkRefused, names, number, number),
    st.builds(BlobQuery, names),
    st.builds(LinkRates, number, number),
    st.builds(ChunkGrant, names, number),
    st.builds(GrantDeclined, names, number),
    st.builds(ChunkCancel, names, number),
    st.builds(MeetingRequest, names),
    st.builds(Meeting, names, st.sampled_from(["/ip4/44.131.7.1/tcp/4001", "/ip4/127.0.0.1/tcp/1"]), st.booleans()),
    st.builds(LedgerQuery, number),
    st.builds(LedgerPage, number, st.lists(st.binary(max_size=9), max_size=80).map(tuple)),
    st.builds(FollowQuery, st.binary(max_size=80), number, number, number, number),
    st.builds(FollowPiece, number, number, number, st.binary(max_size=9)),
)
steps = st.tuples(
    st.sampled_from("ABCD"),
    st.one_of(st.binary(max_size=60), st.lists(messages, min_size=1, max_size=6)),
    st.floats(0, 20),
)


def introduces(peer: PeerId, envelope: bytes) -> bool:
    """Whether this is an introduction of that peer, signed by the learner."""
    opened = open_envelope(envelope, now=None)
    message = opened.body
    return (
        opened.author == LEARNER.public_key
        and isinstance(message, Introduction)
        and peer_id_of(message.peer) == peer
        and message.peer not in message.neighbors
    )


@given(st.lists(steps, max_size=25), st.sampled_from([Role.VOLUNTEER, Role.LEARNER, Role.BOARD]), st.booleans())
@settings(max_examples=120, deadline=None)
def test_a_node_survives_any_bytes(
    inputs: list[tuple[str, bytes | list[Wire], float]], role: Role, knows_run: bool
) -> None:
    identity = LEARNER if role is Role.LEARNER else identity_of("me")
    now = START
    node = Node(identity, RUN, MemoryBlobs(), random.Random(1), NodeConfig(role=role), now)
    if knows_run:
        node.begin(MANIFEST)
    for name, content, wait in inputs:
        frame = content if isinstance(content, bytes) else b"".join(frames.pack(message) for message in content)
        node.receive(frame, identity_of(name).peer_id, now)
        for command in node.commands(now):
            if isinstance(command, Send):
                sent = list(frames.unpack(command.frame))
                assert sent, "no empty frame"
                pushed = [message.envelope for message in sent if isinstance(message, Push)]
                assert all(
                    envelope in (*GOOD, MANIFEST) or introduces(command.peer, envelope) for envelope in pushed
                ), "junk was forwarded"
                if command.bulk:
                    node.upload_done(command.peer)
        while node.next_event() is not None:
            pass
        now += wait
        if node.next_deadline() <= now:
            node.handle_timer(now)
            node.commands(now)
        assert node.next_deadline() > now, "a deadline that stays in the past would spin its shell"
