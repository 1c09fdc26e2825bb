"""A node's memory over thousands of peers that come, say everything a peer can say, and go: no table keeps them all."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from p2prl.protocol import frames, wire_version
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import StorageReceipt
from p2prl.protocol.link_messages import (
    BlobQuery,
    ChunkCancel,
    ChunkGrant,
    ChunkRequest,
    GrantDeclined,
    Have,
    Hello,
    LedgerQuery,
    LinkRates,
    MeetingRequest,
    Offer,
    Push,
    Want,
)
from p2prl.protocol.peer_messages import PeerRecord
from p2prl.protocol.wire_codec import Wire
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm import message_limits, shared_allowance
from p2prl.swarm.events import Dial, Send
from p2prl.swarm.gossip import forwarding, ledger_sync, verdict_gate
from p2prl.swarm.gossip.envelope_store import ReceiptCache
from p2prl.swarm.gossip.forwarding import GossipConfig
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.peers import dial_rules
from p2prl.swarm.peers.connections_config import ConnectionsConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from p2prl_lab.testing.protocol_swarm import group_of

LEARNER = identity_of("learner")
START = 1_800_000_000.0
WEIGHTS = random.Random(1).randbytes(200_000)
MANIFEST = seal(LEARNER, run_manifest_of(LEARNER, weight_bytes=len(WEIGHTS)), run=bytes(32), now=START)
RUN = envelope_digest(MANIFEST)

LINKED = 20
"""Peers linked at a time."""
KEPT = 100
"""Capacity of the tables that remember peers which have left, in place of thousands: as strict, and shorter."""


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (message_limits, "_KEYS"),
        (shared_allowance, "_PLACES"),
        (ledger_sync, "_REMEMBERED_PEERS"),
        (verdict_gate, "_GROUPS"),
        (dial_rules, "_SUBNETS"),
    ):
        assert getattr(module, name) >= KEPT
        monkeypatch.setattr(module, name, KEPT)
    monkeypatch.setattr(forwarding, "ReceiptCache", partial(ReceiptCache, KEPT))


class Crowd:
    """A node, and peers of which each stays for a while."""

    def __init__(self, role: Role) -> None:
        self.now = START
        me = LEARNER if role is Role.LEARNER else identity_of("me")
        gossip = GossipConfig(seen=KEPT, store_bytes=KEPT * 500)
        connections = ConnectionsConfig(max_known=KEPT)
        config = NodeConfig(role=role, fetch_policies=False, gossip=gossip, connections=connections)
        self.node = Node(me, RUN, MemoryBlobs(), random.Random(1), config, START)
        self.node.begin(MANIFEST)
        self._linked: deque[Identity] = deque()
        self._role = role

    def pass_through(self, numbers: range) -> None:
        """Each of these peers links, says everything and leaves once `LINKED` others have come."""
        records: list[bytes] = []
        for number in numbers:
            self.now += 0.5
            peer = identity_of(f"peer {number}")
            self._linked.append(peer)
            where = f"/ip4/{1 + number % 223}.{number // 223 % 250}.{number % 249}.9/tcp/{4001 + number % 999}"
            self.node.note_address(peer.peer_id, where)
            record = PeerRecord(int(Role.VOLUNTEER), (f"{where}/p2p/{peer.peer_id}",), -1, int(self.now * 1000) - 1)
            records.append(seal(peer, record, run=RUN, now=self.now))
            if number % LINKED == 0:
                self.node.looked_up(records, self.now)
                records.clear()
            for message in self._says(peer, number):
                self.node.receive(frames.pack(message), peer.peer_id, self.now)
            if len(self._linked) > LINKED:
                self.node.lost(self._linked.popleft().peer_id, self.now)
            self.node.handle_timer(self.now)
            for command in self.node.commands(self.now):
                if isinstance(command, Dial):
                    self.node.dial_failed(command.peer, self.now)
                elif isinstance(command, Send) and command.bulk:
                    self.node.upload_done(command.peer, delivered=number % 2 == 0)
            while self.node.next_event() is not None:
                pass

    def _says(self, peer: Identity, number: int) -> Iterator[Wire]:
        roles = (Role.VOLUNTEER, Role.VOLUNTEER, Role.SEEDER, Role.VALIDATOR, Role.BOARD, Role.LEARNER)
        name = digest("p2prl/test/name", number.to_bytes(8, "little"))
        yield Hello(wire_version.WIRE_VERSION, RUN, int(roles[number % 6]), int(self.now * 1000), -1, 0, 0, 0)
        group = seal(peer, group_of(number), run=RUN, now=self.now)
        yield Push(group)
        receipt = seal(LEARNER, StorageReceipt((envelope_digest(group),)), run=RUN, now=self.now)
        if self._role is Role.LEARNER:
            self.node.publish(receipt, self.now)
        else:
            yield Push(receipt)
        yield LinkRates(10_000 + number, 10_000)
        yield Offer((name,))
        yield Want((name, envelope_digest(group)))
        yield MeetingRequest(peer.public_key)
        yield LedgerQuery(0)
        yield from (
            BlobQuery(name),
            Have(name, b"\x01"),
            ChunkRequest(name, 0),
            ChunkGrant(name, 0),
            GrantDeclined(name, 0),
            ChunkCancel(name, 0),
        )


def items_of(root: object) -> Counter[str]:
    """Number of items in each container that is reachable from `root` through attributes and containers, by path."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("node", root)]
    while waiting:
        path, value = waiting.pop()
        if id(value) in seen or isinstance(value, (str, bytes, int, float, type(None), type)):
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            found[path] += len(value)
            waiting += [(f"{path}[]", part) for pair in list(value.items()) for part in pair]
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            found[path] += len(value)
            waiting += [(f"{path}[]", part) for part in value]
        elif type(value).__module__.startswith("p2prl."):
            slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
            names = {*slots, *getattr(value, "__dict__", {})}
            waiting += [(f"{path}.{name}", getattr(value, name)) for name in sorted(names) if hasattr(value, name)]
    return found


@pytest.mark.parametrize("role", [Role.LEARNER, Role.SEEDER])
def test_no_table_of_a_node_grows_with_the_peers_that_have_been_there(role: Role) -> None:
    crowd = Crowd(role)
    crowd.pass_through(range(6 * KEPT))
    before = items_of(crowd.node)
    crowd.pass_through(range(6 * KEPT, 14 * KEPT))
    after = items_of(crowd.node)
    assert sum(before.values()) > 5 * KEPT, "the walk finds the tables"
    grown = {path: (before[path], count) for path, count in after.items() if count > 1.2 * before[path] + 2 * LINKED}
    assert not grown, sorted(grown.items())
    assert sum(after.values()) < 1.05 * sum(before.values()) + 10 * LINKED


def test_the_walk_finds_a_table_that_keeps_every_peer() -> None:
    crowd = Crowd(Role.SEEDER)
    crowd.pass_through(range(10))
    crowd.node.leak = {Digest(bytes([k]) * 32): [k] for k in range(100)}  # type: ignore[attr-defined]
    assert items_of(crowd.node)["node.leak"] == 100
