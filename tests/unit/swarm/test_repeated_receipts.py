"""Receipts that a stranger repeats: each counts once, however much passes in between."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from p2prl.protocol import frames, wire_version
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState
from p2prl.protocol.link_messages import Hello, Push
from p2prl.protocol.wire_codec import Wire
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm.gossip.deduplication import CountedOnce
from p2prl.swarm.gossip.forwarding import GossipConfig
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from p2prl_lab.testing.protocol_swarm import group_of

NOW = 1_800_000_000.0
LEARNER, EVE = identity_of("learner"), identity_of("eve")
MANIFEST = seal(LEARNER, run_manifest_of(LEARNER), run=bytes(32), now=NOW)
RUN = envelope_digest(MANIFEST)


def node() -> Node:
    config = NodeConfig(role=Role.SEEDER, gossip=GossipConfig(seen=64))
    made = Node(identity_of("me"), RUN, MemoryBlobs(), random.Random(1), config, NOW)
    made.begin(MANIFEST)
    return made


def push(subject: Node, body: Wire, *, by: Identity, at: float, now: float) -> None:
    hello = Hello(wire_version.WIRE_VERSION, RUN, int(Role.VOLUNTEER), int(now * 1000), -1, 0)
    for message in (hello, Push(seal(by, body, run=RUN, now=at))):
        subject.receive(frames.pack(message), EVE.peer_id, now)
    subject.commands(now)


def is_known(subject: Node, now: float) -> bool:
    return subject.connections.standings.is_known(EVE.peer_id, now)


def test_what_is_repeated_gives_no_standing() -> None:
    subject = node()
    receipts = Receipts(0, (Receipt(bytes(32), EVE.public_key, 0, 0, int(ReceiptState.VERIFIED), "", 1, 1, 0.0),))
    for turn in range(20):
        now = NOW + 60 * turn
        push(subject, receipts, by=LEARNER, at=NOW, now=now)
        for slot in range(70):
            push(subject, group_of(100 * turn + slot), by=EVE, at=now, now=now)
    assert not is_known(subject, NOW + 1_200)
    for turn in range(8):
        push(subject, receipts, by=LEARNER, at=NOW + 1_200 + turn / 1000, now=NOW + 1_200)
    assert is_known(subject, NOW + 1_200), "nine good ones do"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=60), st.integers(1, 8))
def test_each_is_counted_at_most_once_and_the_newest_are(sent: list[tuple[int, int]], capacity: int) -> None:
    counted = CountedOnce(capacity)
    seen: list[tuple[int, int]] = []
    for at, name in sent:
        ahead = sum(other > at for other, _ in set(seen))
        first = counted.is_first(bytes((at, name)), at)
        assert not (first and (at, name) in seen)
        if (at, name) not in seen and len(set(seen)) < capacity:
            assert first, "nothing was forgotten yet"
        assert not first or ahead <= capacity
        seen.append((at, name))
