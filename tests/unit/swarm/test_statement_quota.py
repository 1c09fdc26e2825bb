"""Owners' statements at one node: what a stranger sends uses up nobody else's places."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from p2prl.protocol import frames, wire_version
from p2prl.protocol.delegation import DAY_MS, Revocation, sign_delegation, sign_revocation
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Hello, Push
from p2prl.protocol.membership import OwnersStatement
from p2prl.sim.bare_run import run_manifest_of
from p2prl.sim.hosts import identity_of
from p2prl.swarm.events import EnvelopeArrived
from p2prl.swarm.gossip.statement_quota import MAX_PER_MACHINE
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs

NOW = 1_800_000_000.0
SERIAL = int(NOW * 1000)
LEARNER, OWNER, ATTIC = (identity_of(name) for name in ("learner", "owner", "attic"))
MANIFEST = seal(LEARNER, run_manifest_of(LEARNER), run=bytes(32), now=NOW)
RUN = envelope_digest(MANIFEST)
DELEGATION = sign_delegation(OWNER, ATTIC.public_key, serial=SERIAL, expires_ms=SERIAL + DAY_MS)
REVOCATION = sign_revocation(OWNER, ATTIC.public_key, serial=SERIAL, from_ms=SERIAL)


def learner() -> Node:
    node = Node(LEARNER, RUN, MemoryBlobs(), random.Random(1), NodeConfig(role=Role.LEARNER), NOW)
    node.begin(MANIFEST)
    return node


def push(node: Node, who: Identity, statement: OwnersStatement, *, at: float = NOW) -> None:
    hello = Hello(wire_version.WIRE_VERSION, RUN, int(Role.VOLUNTEER), int(at * 1000), -1, 0)
    for message in (hello, Push(seal(who, statement, run=RUN, now=at))):
        node.receive(frames.pack(message), who.peer_id, NOW)


def arrived(node: Node) -> list[OwnersStatement]:
    events = iter(node.next_event, None)
    return [event.opened.body for event in events if isinstance(event, EnvelopeArrived)]  # type: ignore[misc]


def forged(number: int) -> Revocation:
    return Revocation(OWNER.public_key, ATTIC.public_key, number + 1, 0, bytes(64))


@pytest.mark.parametrize("of", [forged, lambda _: REVOCATION], ids=["forged", "repeated"])
@pytest.mark.parametrize("honest", [DELEGATION, sign_revocation(OWNER, ATTIC.public_key, serial=SERIAL + 1, from_ms=0)])
def test_statements_of_strangers_leave_an_owners_places_alone(
    of: Callable[[int], Revocation], honest: OwnersStatement
) -> None:
    node = learner()
    for number in range(3 * MAX_PER_MACHINE):
        push(node, identity_of(f"stranger {number // 2}"), of(number), at=NOW - number)
    arrived(node)
    push(node, ATTIC, honest)
    assert arrived(node) == [honest]


def test_one_sender_repeats_a_revocation_a_few_times() -> None:
    node = learner()
    for number in range(3 * MAX_PER_MACHINE):
        push(node, ATTIC, REVOCATION, at=NOW - number)
    assert arrived(node) == [REVOCATION] * MAX_PER_MACHINE
