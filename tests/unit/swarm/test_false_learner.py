"""Peers that claim the learner's role without the run's key."""

from __future__ import annotations

import itertools
import random

from p2prl.protocol import frames, wire_version
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Hello, Offer, Push
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm.events import Send
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from p2prl_lab.testing.protocol_swarm import group_of

NOW = 1_800_000_000.0
SLOTS = itertools.count()
ME, LEARNER, IMPOSTOR, FRIEND = (identity_of(name) for name in ("me", "learner", "impostor", "friend"))
MANIFEST = seal(LEARNER, run_manifest_of(LEARNER), run=bytes(32), now=NOW)
RUN = envelope_digest(MANIFEST)


def node() -> Node:
    return Node(ME, RUN, MemoryBlobs(), random.Random(1), NodeConfig(role=Role.VOLUNTEER), NOW)


def greet(subject: Node, peer: PeerId, role: Role) -> None:
    subject.receive(frames.pack(Hello(wire_version.WIRE_VERSION, RUN, int(role), int(NOW * 1000), -1, 0)), peer, NOW)
    subject.commands(NOW)


def told_of_group(subject: Node) -> dict[PeerId, set[type]]:
    """Kinds of message by which each peer is sent a fresh group."""
    subject.commands(NOW)
    subject.publish(seal(ME, group_of(next(SLOTS)), run=RUN, now=NOW), NOW)
    sent: dict[PeerId, set[type]] = {}
    for command in subject.commands(NOW):
        if isinstance(command, Send):
            kinds = {type(m) for m in frames.unpack(command.frame) if isinstance(m, Push | Offer)}
            sent.setdefault(command.peer, set()).update(kinds)
    return {peer: kinds for peer, kinds in sent.items() if kinds}


def test_a_false_learner_gets_no_groups() -> None:
    subject = node()
    subject.begin(MANIFEST)
    greet(subject, IMPOSTOR.peer_id, Role.LEARNER)
    greet(subject, FRIEND.peer_id, Role.VOLUNTEER)
    assert told_of_group(subject)[FRIEND.peer_id] == {Push}, "carriers are used: no learner is linked"
    assert dict(subject.roles()) == {"listener": 1, "volunteer": 1}
    greet(subject, LEARNER.peer_id, Role.LEARNER)
    assert told_of_group(subject) == {LEARNER.peer_id: {Push}}


def test_roles_are_reassigned_when_the_manifest_arrives() -> None:
    subject = node()
    for who, role in ((IMPOSTOR, Role.LEARNER), (LEARNER, Role.LEARNER), (FRIEND, Role.VOLUNTEER)):
        greet(subject, who.peer_id, role)
    assert len(told_of_group(subject)) == 3, "no peer is a learner yet: all may be carriers"
    subject.receive(frames.pack(Push(MANIFEST)), FRIEND.peer_id, NOW)
    assert told_of_group(subject) == {LEARNER.peer_id: {Push}}
