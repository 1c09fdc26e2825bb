"""Owners' statements at one node: what a stranger sends uses up nobody else's places."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import pytest

from p2prl.protocol import frames, wire_version
from p2prl.protocol.delegation import DAY_MS, Delegation, Revocation, sign_delegation, sign_revocation
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Hello, Push
from p2prl.protocol.membership_statements import OwnersStatement
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm.events import EnvelopeArrived
from p2prl.swarm.gossip.statement_quota import FIRST_OF_PLACE, MAX_IN_ALL, MAX_PER_LINK, MAX_PER_MACHINE
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


def push(node: Node, who: Identity, statement: OwnersStatement, *, at: float = NOW, now: float = NOW) -> None:
    hello = Hello(wire_version.WIRE_VERSION, RUN, int(Role.VOLUNTEER), int(at * 1000), -1, 0)
    for message in (hello, Push(seal(who, statement, run=RUN, now=at))):
        node.receive(frames.pack(message), who.peer_id, now)


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


LINKS = 64
AFTER = NOW + 20.0
"""When the flood has had its places."""


@functools.cache
def delegation_by(owner: str, machine: Identity) -> Delegation:
    return sign_delegation(identity_of(owner), machine.public_key, serial=SERIAL + 1, expires_ms=SERIAL + DAY_MS)


def flood(node: Node, *, subnets: int) -> int:
    """Delegations by fresh owners, as many as the quota has room for; returns how many are passed on."""
    for number in range(LINKS):
        machine = identity_of(f"flood {number}")
        node.note_address(machine.peer_id, f"/ip4/44.{number % subnets}.1.1/tcp/4001")
        for each in range(MAX_PER_LINK):
            push(node, machine, delegation_by(f"owner {number}/{each}", machine), now=NOW + 0.2 * number)
    return len(arrived(node))


@pytest.mark.parametrize("subnets", [1, LINKS])
def test_a_known_machine_is_revoked_amid_a_flood_by_anybody(subnets: int) -> None:
    node = learner()
    push(node, ATTIC, DELEGATION)
    assert flood(node, subnets=subnets) == MAX_IN_ALL
    spent = identity_of("flood 0")
    push(node, spent, REVOCATION, now=AFTER)
    assert arrived(node) == [REVOCATION]
    push(node, spent, sign_revocation(OWNER, ATTIC.public_key, serial=SERIAL + 1, from_ms=0), now=AFTER)
    assert arrived(node) == [], "one in a window"
    push(node, spent, sign_revocation(OWNER, LEARNER.public_key, serial=SERIAL, from_ms=0), now=AFTER)
    assert arrived(node) == [], "nobody delegated this one"


@pytest.mark.parametrize("subnets", [1, LINKS])
def test_a_flood_leaves_room_for_the_first_statements_of_another_place(subnets: int) -> None:
    node = learner()
    assert flood(node, subnets=subnets) == MAX_IN_ALL
    crowd = [identity_of(f"late {number}") for number in range(3 * FIRST_OF_PLACE)]
    for each in crowd:
        node.note_address(each.peer_id, "/ip4/45.1.1.9/tcp/4001")
        push(node, each, delegation_by("late", each), now=AFTER)
    assert len(arrived(node)) == FIRST_OF_PLACE
