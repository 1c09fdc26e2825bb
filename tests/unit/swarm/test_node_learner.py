"""Who is a learner to a node: the run's key, and nobody that only says so."""

from __future__ import annotations

import itertools
import random

from p2prl.protocol import frames, limits
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Hello, Offer, Push
from p2prl.sim.broadcast_swarm import group_of, identity_of, run_manifest_of
from p2prl.sim.memory_blobs import MemoryBlobs
from p2prl.swarm.events import Send
from p2prl.swarm.node import Node, NodeConfig

NOW = 1_800_000_000.0
SLOTS = itertools.count()
ME, LEARNER, IMPOSTOR, FRIEND = (identity_of(name) for name in ("me", "learner", "impostor", "friend"))
MANIFEST = seal(LEARNER, run_manifest_of(LEARNER), run=bytes(32), now=NOW)
RUN = envelope_digest(MANIFEST)


def node() -> Node:
    return Node(ME, RUN, MemoryBlobs(), random.Random(1), NodeConfig(role=Role.VOLUNTEER), NOW)


def greet(subject: Node, peer: PeerId, role: Role) -> None:
    subject.receive(frames.pack(Hello(limits.WIRE_VERSION, RUN, int(role), int(NOW * 1000), -1, 0)), peer, NOW)
    subject.commands(NOW)


def told(subject: Node) -> dict[PeerId, set[type]]:
    """Who is sent a fresh group, and how."""
    subject.commands(NOW)
    subject.publish(seal(ME, group_of(next(SLOTS)), run=RUN, now=NOW), NOW)
    sent: dict[PeerId, set[type]] = {}
    for command in subject.commands(NOW):
        if isinstance(command, Send):
            kinds = {type(m) for m in frames.unpack(command.frame) if isinstance(m, Push | Offer)}
            sent.setdefault(command.peer, set()).update(kinds)
    return {peer: kinds for peer, kinds in sent.items() if kinds}


def test_an_impostor_does_not_swallow_groups() -> None:
    subject = node()
    subject.begin(MANIFEST)
    greet(subject, IMPOSTOR.peer_id, Role.LEARNER)
    greet(subject, FRIEND.peer_id, Role.VOLUNTEER)
    assert told(subject)[FRIEND.peer_id] == {Push}, "carriers are used: no learner is here"
    assert dict(subject.roles()) == {"listener": 1, "volunteer": 1}
    greet(subject, LEARNER.peer_id, Role.LEARNER)
    assert told(subject) == {LEARNER.peer_id: {Push}}


def test_links_from_before_the_manifest_are_seen_anew_when_it_arrives() -> None:
    subject = node()
    for who, role in ((IMPOSTOR, Role.LEARNER), (LEARNER, Role.LEARNER), (FRIEND, Role.VOLUNTEER)):
        greet(subject, who.peer_id, role)
    assert len(told(subject)) == 3, "nobody is a learner yet: everybody may carry"
    subject.receive(frames.pack(Push(MANIFEST)), FRIEND.peer_id, NOW)
    assert told(subject) == {LEARNER.peer_id: {Push}}
